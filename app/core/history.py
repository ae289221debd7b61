"""The recent past of a live figure, for the sparklines."""

from __future__ import annotations

import math
from array import array


class History:
    """The newest `length` samples, oldest first."""

    def __init__(self, length: int) -> None:
        if length < 2:
            raise ValueError(f"a history of {length} samples shows nothing: at least 2")
        self._samples = array("d")
        self.length = length

    def add(self, value: float) -> None:
        self._samples.append(value)
        if len(self._samples) == 2 * self.length:  # now and then, not once a sample
            del self._samples[: self.length]

    def clear(self) -> None:
        del self._samples[:]

    @property
    def values(self) -> tuple[float, ...]:
        return self.tail(self.length)

    def tail(self, count: int) -> tuple[float, ...]:
        """The newest `count` samples, fewer where there are none."""
        return tuple(self._samples[-min(count, self.length) :]) if count > 0 else ()

    def __len__(self) -> int:
        return min(len(self._samples), self.length)

    @property
    def newest(self) -> float:
        return self._samples[-1] if self._samples else 0.0

    @property
    def oldest(self) -> float:
        return self._samples[-len(self)] if self._samples else 0.0

    @property
    def highest(self) -> float:
        """Of those that are numbers; 0 where none is."""
        return max((value for value in self.values if not math.isnan(value)), default=0.0)
