"""Workers as plain subprocesses: for the command line, and for one look-up in a thread."""

from __future__ import annotations

from app.core.downloads.records import LookUp, Planned
from engine import child_process


def command() -> tuple[str, ...]:
    """What starts a worker: its program and arguments. It wants `child_process.environment()`."""
    return child_process.module("app.core.downloads.worker")


def look_up(task: LookUp) -> Planned:
    """Ask the hub what a request comes to. Waits for the answer: call it in a thread.

    Raises DownloadError, with the worker's fault.
    """
    raise NotImplementedError
