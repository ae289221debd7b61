"""Asking the hub what a request comes to, with a worker that can be given up."""

from __future__ import annotations

import msgspec
from PySide6.QtCore import QObject, Signal

from app.core.downloads import process
from app.core.downloads.records import Event, Failed, Fault, LookUp, Pace, Planned, Waiting
from app.ui.child import Child

PACE = Pace(tries=3, stall_s=15.0)
"""Somebody waits before the screen: say soon that the hub does not answer."""
_events: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


class HubQuestion(QObject):
    """One question. It signals once: `answered` or `refused`."""

    answered = Signal(object)
    """Planned"""
    refused = Signal(object)
    """Fault"""
    waiting = Signal(str)
    """Why it has to be tried again."""

    def __init__(self, task: LookUp, parent: QObject) -> None:
        super().__init__(parent)
        self._told = False
        self._child = Child(process.command(), self._heard, self._ended, self)
        self._child.start(process.encode(task))

    def close(self) -> None:
        """Give it up."""
        self._told = True
        self._child.close()
        self.deleteLater()

    def _heard(self, line: bytes) -> None:
        event = _events.decode(line)
        if isinstance(event, Waiting):
            self.waiting.emit(event.reason)
        elif isinstance(event, Planned) and not self._told:
            self._told = True
            self.answered.emit(event)
        elif isinstance(event, Failed) and not self._told:
            self._told = True
            self.refused.emit(event.fault)

    def _ended(self, reason: str) -> None:
        if not self._told:
            self._told = True
            message = reason or "The process that asks the hub ended without an answer."
            self.refused.emit(Fault(code="worker_died", message=message))
