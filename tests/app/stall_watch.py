"""How long the interface thread keeps its event loop from everything else while it is used."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from PySide6.QtCore import Qt, QTimer

FRAME_S = 0.016
"""What lasts no longer nobody sees: a frame at 60 Hz."""
TRIES = 3
"""A stall of the app's own is in every one of them; what the machine does beside is not."""


class StallWatch:
    """The longest time between two turns of the event loop, for each thing that is done.

    Counted in the thread's own CPU time, so that other programs' load is not taken for the app's:
    what waits without computing (a file, a lock) is not seen by it.
    """

    def __init__(self) -> None:
        self.steps: list[tuple[str, float]] = []
        """What was done, and the longest that the loop stood still meanwhile."""
        self._last = 0.0
        self._timer = QTimer()
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.setInterval(1)
        self._timer.timeout.connect(self._turn)

    @contextmanager
    def watching(self) -> Iterator[None]:
        gc.collect()
        gc.freeze()  # what other tests have left is not the app's to look through
        self.doing("begin")
        self._last = time.thread_time()
        self._timer.start()
        try:
            yield
            self._turn()
        finally:
            self._timer.stop()
            gc.unfreeze()

    def doing(self, what: str) -> None:
        """Name what comes next."""
        self.steps.append((what, 0.0))

    def _turn(self) -> None:
        now = time.thread_time()
        what, longest = self.steps[-1]
        self.steps[-1] = (what, max(longest, now - self._last))
        self._last = time.thread_time()


def longest_stall(use: Callable[[StallWatch], None]) -> tuple[float, str]:
    """Seconds, and during what: of each step the shortest of a few tries, of those the longest.

    `use` does the same steps in the same order each time.
    """
    shortest: list[tuple[float, str]] = []
    for _ in range(TRIES):
        watch = StallWatch()
        with watch.watching():
            use(watch)
        found = [(longest, what) for what, longest in watch.steps]
        shortest = [min(pair) for pair in zip(shortest or found, found, strict=True)]
        if max(shortest)[0] < FRAME_S:
            break
    return max(shortest)
