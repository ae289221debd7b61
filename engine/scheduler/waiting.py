"""The queue of requests that do not run: first come, first served."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from engine.scheduler.sequence import Sequence


@dataclass
class WaitingQueue:
    """Ordered by arrival: a preempted sequence goes before all that came after it."""

    _sequences: list[Sequence] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    @property
    def head(self) -> Sequence | None:
        """The first that may run."""
        return next((sequence for sequence in self._sequences if not sequence.held), None)

    def enter(self, sequence: Sequence) -> None:
        insort(self._sequences, sequence, key=lambda waiting: waiting.arrival)

    def leave(self, sequence: Sequence) -> None:
        self._sequences.remove(sequence)
