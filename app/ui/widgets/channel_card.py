"""The channel: how well the expert cache follows the router, and what crosses the link."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QGridLayout, QWidget

from app.core import units
from app.core.history import History
from app.ui.widgets.basics import Card, label, row, split_unit
from app.ui.widgets.figure import Figure
from app.ui.widgets.gauge import Gauge
from app.ui.widgets.sparkline import Sparkline
from engine.messages import Stats

_SAMPLES = 90


class ChannelCard(Card):
    def __init__(self) -> None:
        super().__init__("EXPERT CHANNEL")
        self._rates = History(_SAMPLES)
        self.hit_rate = Figure("Hit rate now", "", 36)
        self.curve = Sparkline("Expert hit rate", units.percent, "experts", top=1.0)
        self.curve.setMinimumSize(64, 96)
        self.slots = Gauge("Expert slots in use", "slots in use")
        self._hits, self._misses = Figure("Hits"), Figure("Misses")
        self._fills, self._link = Figure("Fills"), Figure("Link now")
        self._note = label("", "muted", wrap=True)
        grid = QGridLayout()
        grid.setHorizontalSpacing(20)
        grid.setVerticalSpacing(12)
        for at, figure in enumerate((self._hits, self._misses, self._fills, self._link)):
            grid.addWidget(figure, at // 2, at % 2)
        grid.setRowStretch(2, 1)
        left = row(24)
        left.addWidget(self.hit_rate, 0, Qt.AlignmentFlag.AlignTop)
        left.addWidget(self.curve, 1)
        self._live = QWidget()
        inside = row(20)
        inside.addLayout(left, 1)
        inside.addWidget(self.slots)
        inside.addLayout(grid)
        self._live.setLayout(inside)
        self.body.addWidget(self._live)
        self.body.addWidget(self._note)

    def clear_history(self) -> None:
        self._rates.clear()
        self.curve.show_values((), _SAMPLES)

    def show_stats(self, stats: Stats, *, ready: bool) -> None:
        self._note.setText(_note(stats, ready=ready))
        has_slots = ready and stats.expert_slots > 0
        self._live.setVisible(has_slots or not ready)
        self._note.setVisible(bool(self._note.text()))
        routed = has_slots and stats.expert_hits + stats.expert_misses > 0
        if routed:
            self._rates.add(stats.expert_hit_rate)
            self.curve.show_values(self._rates.values, _SAMPLES)
            self.hit_rate.show_value(*split_unit(units.percent(stats.expert_hit_rate)))
        else:
            self.hit_rate.show_value("–", "")
        if has_slots:
            used = f"{units.count(stats.expert_slots_used)} / {units.count(stats.expert_slots)}"
            self.slots.show_share(stats.expert_slots_used / stats.expert_slots, used)
        else:
            self.slots.show_share(None, "")
        self._hits.show_value(units.count(stats.expert_hits) if routed else "–")
        self._misses.show_value(units.count(stats.expert_misses) if routed else "–")
        self._fills.show_value(units.count(stats.expert_fills) if routed else "–")
        link = split_unit(units.rate(stats.link_bytes_per_s)) if has_slots else ("–", "")
        self._link.show_value(*link)


def _note(stats: Stats, *, ready: bool) -> str:
    if not ready:
        return ""
    if stats.expert_total == 0:
        return "This model has no experts: all of its weights are always in use."
    if stats.expert_slots == 0:
        return (
            f"On this device the model's {units.count(stats.expert_total)} experts are computed"
            " where they lie in host memory: there is no cache, and nothing crosses a link."
        )
    return ""
