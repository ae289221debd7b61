"""Work for which the interface must not wait: done in a thread, its outcome handed in at home."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from PySide6.QtCore import QObject, Qt, Signal

log = logging.getLogger(__name__)

_END_S = 2.0
_LAST_S = 10.0
"""For what is still to be written when the app ends."""
Result = TypeVar("Result")


@dataclass(frozen=True)
class _Outcome:
    hand_in: Callable[[Any], None]
    value: Any


def _outcome(
    work: Callable[[], Result],
    done: Callable[[Result], None],
    failed: Callable[[Exception], None],
) -> _Outcome:
    """What the work came to, and who is told."""
    try:
        return _Outcome(done, work())
    except Exception as error:  # noqa: BLE001  (whatever it is, it is handed in)
        return _Outcome(failed, error)


class Background(QObject):
    """Runs functions in threads of their own; what they return or raise comes back in the thread
    in which this object was made, unless it was closed meanwhile."""

    _ended = Signal(object)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._closed = False
        self._threads: set[threading.Thread] = set()
        self._ended.connect(self._hand_in, Qt.ConnectionType.QueuedConnection)

    def run(
        self,
        work: Callable[[], Result],
        done: Callable[[Result], None],
        failed: Callable[[Exception], None],
    ) -> None:
        def thread() -> None:
            outcome = _outcome(work, done, failed)
            if not self._closed:
                self._ended.emit(outcome)
            self._threads.discard(threading.current_thread())

        # A look at a drive that does not answer must not keep the app from ending.
        started = threading.Thread(target=thread, name="headrace-background", daemon=True)
        self._threads.add(started)
        started.start()

    def close(self) -> None:
        """Nothing is handed in any more."""
        self._closed = True
        for thread in tuple(self._threads):
            thread.join(_END_S)

    def _hand_in(self, outcome: _Outcome) -> None:
        if not self._closed:
            outcome.hand_in(outcome.value)


class Serial(QObject):
    """Like Background, but in one thread, one after the other; all that was asked for is done
    before it is closed."""

    _ended = Signal(object)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._closed = False
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ended.connect(self._hand_in, Qt.ConnectionType.QueuedConnection)

    def run(
        self,
        work: Callable[[], Result],
        done: Callable[[Result], None],
        failed: Callable[[Exception], None],
    ) -> None:
        def one() -> None:
            outcome = _outcome(work, done, failed)
            if not self._closed:
                self._ended.emit(outcome)

        if self._closed:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="headrace-serial", daemon=True)
            self._thread.start()
        self._work.put(one)

    def close(self) -> None:
        """Wait for what was asked for; nothing is handed in any more."""
        self._closed = True
        self._work.put(None)
        if self._thread is not None:
            self._thread.join(_LAST_S)

    def _loop(self) -> None:
        while (one := self._work.get()) is not None:
            one()

    def _hand_in(self, outcome: _Outcome) -> None:
        if not self._closed:
            outcome.hand_in(outcome.value)
