"""What the engine told of itself in the last hour, for curves and for a spreadsheet."""

from __future__ import annotations

import csv
import io
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from app.core import units
from app.core.history import History
from engine.messages import Stats

KEPT_SAMPLES = 3600
"""An hour, at one a second."""

FIGURES = (
    *("decode_tokens_per_s", "prefill_tokens_per_s", "ttft_s", "ttft_worst_s"),
    *("requests_running", "requests_waiting", "requests_finished", "requests_failed"),
    *("expert_hit_rate", "expert_hits", "expert_misses", "expert_fills", "expert_slots_used"),
    *("link_bytes_per_s", "gather_bytes_per_s", "gather_us_per_step", "host_bytes_per_s"),
    *("cpu_share", "vram_dense_bytes", "vram_expert_bytes", "vram_kv_bytes"),
    *("vram_snapshot_bytes", "vram_workspace_bytes", "vram_graph_bytes", "vram_overhead_bytes"),
    *("vram_other_bytes", "ram_available_bytes", "ram_runtime_bytes"),
)
"""Fields of `Stats` that are kept."""
_SPANS_S = (60.0, 120.0, 300.0)
_UNKNOWN_AT_ZERO = ("ttft_s", "ttft_worst_s", "gather_us_per_step")


@dataclass(frozen=True)
class Curve:
    """One figure over time. A value is NaN where it was not known."""

    times: tuple[float, ...]
    """Seconds since 1970, rising."""
    values: tuple[float, ...]


class StatsHistory:
    """The newest `length` samples of every figure, each with the time it came at."""

    def __init__(self, length: int = KEPT_SAMPLES) -> None:
        self._times = History(length)
        self._figures = {name: History(length) for name in FIGURES}

    def __len__(self) -> int:
        return len(self._times)

    def add(self, at: float, stats: Stats) -> None:
        """`at`: seconds since 1970. A clock that is set back begins a new history."""
        if len(self) and at < self._times.newest:
            self.clear()
        self._times.add(at)
        routed = stats.expert_hits + stats.expert_misses > 0
        for name, history in self._figures.items():
            value = getattr(stats, name)
            unknown = (name in _UNKNOWN_AT_ZERO and not value) or (
                name == "expert_hit_rate" and not routed
            )
            history.add(math.nan if unknown else value)

    def clear(self) -> None:
        for history in (self._times, *self._figures.values()):
            history.clear()

    def recent(self, name: str, seconds: float) -> Curve:
        """A figure's samples of the last `seconds` before the newest."""
        times = self._times.tail(math.ceil(seconds) + 1)  # they come once a second or less often
        first = bisect_left(times, times[-1] - seconds) if times else 0
        values = self._figures[name].tail(len(times) - first)
        return Curve(times[first:], values)

    def span(self) -> float:
        """Seconds that a curve shows: one, two or five minutes, as much as there is."""
        kept = self._times.newest - self._times.oldest
        return next((span for span in _SPANS_S[:-1] if kept <= span), _SPANS_S[-1])

    def highest(self, name: str) -> float:
        """Of all that is kept; 0 where nothing is known."""
        return self._figures[name].highest

    def table(self) -> Table:
        """A copy of everything that is kept, to be written elsewhere."""
        return Table(self._times.values, [history.values for history in self._figures.values()])


@dataclass(frozen=True)
class Table:
    times: tuple[float, ...]
    columns: Sequence[tuple[float, ...]]
    """In the order of `FIGURES`."""

    def csv(self) -> str:
        """A row a sample: the time in UTC, then the figures by their names in `Stats`, empty where
        one was not known."""
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["time", *FIGURES])
        for at, row in zip(self.times, zip(*self.columns, strict=True), strict=True):
            when = datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
            writer.writerow([when, *(_cell(value) for value in row)])
        return text.getvalue()


def _cell(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.10g}"


def describe(name: str) -> Callable[[float], str]:
    """How a figure's values are written for people, by the unit that its name ends with."""
    for ending, words in _WORDS.items():
        if name.endswith(ending):
            return words
    return lambda value: units.count(round(value))


_WORDS: dict[str, Callable[[float], str]] = {
    "_tokens_per_s": lambda value: f"{units.speed(value)} tok/s",
    "_bytes_per_s": units.rate,
    "_bytes": units.size,
    "_us_per_step": lambda value: units.short_time(value / 1e6),
    "_rate": units.percent,
    "_share": units.percent,
    "_s": units.duration,
}
