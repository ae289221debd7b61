"""Figures of the last two seconds."""

from __future__ import annotations

from collections import deque

WINDOW_SECONDS = 2.0
_SHORTEST = 1e-3


class Rate:
    """Amounts that were worked off over spans of time, and their sum a second."""

    def __init__(self) -> None:
        self._spans: deque[tuple[float, float, float]] = deque()

    def add(self, begin: float, end: float, amount: float) -> None:
        self._spans.append((begin, max(end, begin + _SHORTEST), amount))
        self._forget(end)

    def per_second(self, now: float) -> float:
        """Since the window's start, or since the first work in it if that is later."""
        self._forget(now)
        if not self._spans:
            return 0.0
        start = max(now - WINDOW_SECONDS, self._spans[0][0])
        amount = 0.0
        for begin, end, whole in self._spans:
            # A span that began before the window counts with the part that lies in it.
            amount += whole * (end - max(begin, start)) / (end - begin)
        return amount / max(now - start, _SHORTEST)

    def _forget(self, now: float) -> None:
        while self._spans and self._spans[0][1] <= now - WINDOW_SECONDS:
            self._spans.popleft()


class Share:
    """Share of successes, or any other ratio of two sums, in the last two seconds that had any
    traffic."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int, int]] = deque()

    def add(self, now: float, successes: int, total: int) -> None:
        if total <= 0:
            return
        while self._samples and self._samples[0][0] <= now - WINDOW_SECONDS:
            self._samples.popleft()
        self._samples.append((now, successes, total))

    def value(self) -> float:
        total = sum(sample[2] for sample in self._samples)
        return sum(sample[1] for sample in self._samples) / total if total else 0.0
