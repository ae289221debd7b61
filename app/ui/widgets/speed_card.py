"""How fast tokens come, and what requests wait for."""

from __future__ import annotations

from PySide6.QtCore import Qt

from app.core import stats_history, units
from app.core.stats_history import StatsHistory
from app.ui.widgets.basics import Card, column, row, split_unit
from app.ui.widgets.figure import Figure
from app.ui.widgets.fitting import FittingGrid
from app.ui.widgets.sparkline import Sparkline
from engine.messages import Stats


class SpeedCard(Card):
    def __init__(self) -> None:
        super().__init__("SPEED")
        self._decode = Figure("Tokens a second", "tok/s", 36)
        self._prefill = Figure("Reading prompts", "tok/s")
        self._peak = Figure("Highest in the last hour", "tok/s")
        describe = stats_history.describe("decode_tokens_per_s")
        self._curve = Sparkline("Tokens a second", describe)
        self._curve.setMinimumHeight(112)
        figures = column(12)
        for figure in (self._decode, self._prefill, self._peak):
            figures.addWidget(figure)
        figures.addStretch()
        inside = row(24)
        inside.addLayout(figures)
        inside.addWidget(self._curve, 1)
        self.body.addLayout(inside)

    @property
    def tracked(self) -> dict[str, Figure]:
        """Figures by the name of their history."""
        return {"decode_tokens_per_s": self._decode, "prefill_tokens_per_s": self._prefill}

    def show_history(self, history: StatsHistory) -> None:
        span = history.span()
        self._curve.show_curve(history.recent("decode_tokens_per_s", span), span)
        highest = history.highest("decode_tokens_per_s")
        self._peak.show_value(units.speed(highest) if highest else "–")

    def show_stats(self, stats: Stats, *, ready: bool) -> None:
        self._decode.show_value(units.speed(stats.decode_tokens_per_s) if ready else "–")
        self._prefill.show_value(units.speed(stats.prefill_tokens_per_s) if ready else "–")


class RequestCard(Card):
    def __init__(self) -> None:
        super().__init__("REQUESTS")
        self._times = {
            "ttft_s": Figure("Time to first token"),
            "ttft_worst_s": Figure("Longest so far"),
        }
        self._counts = {
            "requests_running": Figure("Running"),
            "requests_waiting": Figure("Waiting"),
            "requests_finished": Figure("Finished"),
            "requests_failed": Figure("Failed"),
        }
        grid = FittingGrid([*self._times.values(), *self._counts.values()], choices=(6, 2))
        self.body.addWidget(grid, 0, Qt.AlignmentFlag.AlignTop)
        self.body.addStretch()

    @property
    def tracked(self) -> dict[str, Figure]:
        """Figures by the name of their history."""
        return self._times | self._counts

    def show_stats(self, stats: Stats) -> None:
        for name, figure in self._times.items():
            seconds: float = getattr(stats, name)
            figure.show_value(*split_unit(units.duration(seconds)) if seconds > 0 else ("–", ""))
        known = stats.state != "stopped"
        for name, figure in self._counts.items():
            figure.show_value(units.count(getattr(stats, name)) if known else "–")
