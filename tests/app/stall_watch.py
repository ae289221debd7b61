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
    """The longest time between two turns of the event loop.

    Counted in the thread's own CPU time, so that other programs' load is not taken for the app's:
    what waits without computing (a file, a lock) is not seen by it.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.during = ""
        self._doing = ""
        self._last = 0.0
        self._timer = QTimer()
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.setInterval(1)
        self._timer.timeout.connect(self._turn)

    @contextmanager
    def watching(self) -> Iterator[None]:
        gc.collect()
        gc.freeze()  # what other tests have left is not the app's to look through
        self._last = time.thread_time()
        self._timer.start()
        try:
            yield
            self._turn()
        finally:
            self._timer.stop()
            gc.unfreeze()

    def doing(self, what: str) -> None:
        """Name what comes next, for the message."""
        self._doing = what

    def _turn(self) -> None:
        now = time.thread_time()
        if now - self._last > self.longest_s:
            self.longest_s, self.during = now - self._last, self._doing
        self._last = time.thread_time()


def longest_stall(use: Callable[[StallWatch], None]) -> StallWatch:
    """Of a few times that the page is used, the one with the shortest longest stall."""
    best: StallWatch | None = None
    for _ in range(TRIES):
        watch = StallWatch()
        with watch.watching():
            use(watch)
        best = watch if best is None or watch.longest_s < best.longest_s else best
        if best.longest_s < FRAME_S:
            break
    assert best is not None
    return best
