"""The recent past of a live figure, for the sparklines."""

from __future__ import annotations

from collections import deque


class History:
    """The newest `length` samples, oldest first."""

    def __init__(self, length: int) -> None:
        if length < 2:
            raise ValueError(f"a history of {length} samples shows nothing: at least 2")
        self._samples: deque[float] = deque(maxlen=length)
        self.length = length

    def add(self, value: float) -> None:
        self._samples.append(value)

    def clear(self) -> None:
        self._samples.clear()

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(self._samples)

    @property
    def newest(self) -> float:
        return self._samples[-1] if self._samples else 0.0

    @property
    def highest(self) -> float:
        return max(self._samples, default=0.0)
