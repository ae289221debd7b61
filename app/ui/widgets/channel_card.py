"""The channel: how well the expert cache follows the router, and what crosses the link."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QWidget

from app.core import units
from app.core.ceilings import Ceilings
from app.core.stats_history import StatsHistory
from app.ui.widgets.basics import Card, column, label, row, split_unit
from app.ui.widgets.figure import Figure
from app.ui.widgets.fitting import FittingGrid, SideBySide
from app.ui.widgets.gauge import Gauge
from app.ui.widgets.rate_meter import RateMeter
from app.ui.widgets.sparkline import Sparkline
from engine.messages import Stats

_TURN = 560


class ChannelCard(Card):
    def __init__(self) -> None:
        super().__init__("EXPERT CHANNEL")
        self._ceilings = Ceilings()
        self.hit_rate = Figure("Hit rate now", "", 36, "experts")
        self.curve = Sparkline("Expert hit rate", units.percent, "experts", top=1.0)
        self.curve.setMinimumSize(64, 96)
        self.slots = Gauge("Expert slots in use", "slots in use")
        self.link = RateMeter("Link now", "experts")
        self.host = RateMeter("Host memory now", "weights")
        self._counts = {
            "expert_hits": Figure("Hits", colour="experts"),
            "expert_misses": Figure("Misses", colour="experts"),
            "expert_fills": Figure("Fills", colour="experts"),
        }
        self._gather = Figure("Fetching, a step", colour="experts")
        self._cpu = Figure("Computed by the CPU", colour="weights")
        self._note = label("", "muted", wrap=True)
        top = row(24)
        top.addWidget(self.hit_rate, 0, Qt.AlignmentFlag.AlignTop)
        top.addWidget(self.curve, 1)
        top.addWidget(self.slots)
        self._meters = SideBySide([self.link, self.host], _TURN, 24)
        self._figures = FittingGrid([*self._counts.values(), self._gather, self._cpu])
        self._live = QWidget()
        inside = column(18)
        inside.addLayout(top)
        inside.addWidget(self._meters)
        inside.addWidget(self._figures)
        self._live.setLayout(inside)
        self.body.addWidget(self._live)
        self.body.addWidget(self._note)
        self.body.addStretch()

    @property
    def tracked(self) -> dict[str, Figure]:
        """Figures by the name of their history."""
        return {
            "expert_hit_rate": self.hit_rate,
            "link_bytes_per_s": self.link.figure,
            "host_bytes_per_s": self.host.figure,
            "gather_us_per_step": self._gather,
            "cpu_share": self._cpu,
            **self._counts,
        }

    def show_history(self, history: StatsHistory) -> None:
        span = history.span()
        self.curve.show_curve(history.recent("expert_hit_rate", span), span)

    def show_stats(self, stats: Stats, *, ready: bool) -> None:
        self._ceilings.take(stats)
        self._note.setText(_note(stats, ready=ready))
        self._note.setVisible(bool(self._note.text()))
        slots = ready and stats.expert_slots > 0
        experts = ready and stats.expert_total > 0
        self._live.setVisible(slots or not ready)
        self._show_slots(stats, slots)
        routed = slots and stats.expert_hits + stats.expert_misses > 0
        _show(self.hit_rate, units.percent(stats.expert_hit_rate) if routed else "")
        for name, figure in self._counts.items():
            figure.show_value(units.count(getattr(stats, name)) if routed else "–")
        took = stats.gather_us_per_step / 1e6
        _show(self._gather, units.short_time(took) if slots and took > 0 else "")
        _show(self._cpu, units.percent(stats.cpu_share) if experts else "")
        self.link.show_rate(stats.link_bytes_per_s if slots else None, self._ceilings.link)
        self.host.show_rate(stats.host_bytes_per_s if experts else None, self._ceilings.host)

    def _show_slots(self, stats: Stats, slots: bool) -> None:
        if slots:
            used = f"{units.count(stats.expert_slots_used)} / {units.count(stats.expert_slots)}"
            self.slots.show_share(stats.expert_slots_used / stats.expert_slots, used)
        else:
            self.slots.show_share(None, "")


def _show(figure: Figure, text: str) -> None:
    """A number with its unit; an empty text where there is none."""
    figure.show_value(*(split_unit(text) if text else ("–", "")))


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
