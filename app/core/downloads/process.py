"""Workers as plain subprocesses: for the command line, and for one look-up in a thread."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable
from types import TracebackType

import msgspec

from app.core.downloads.errors import DownloadError
from app.core.downloads.records import Event, Failed, LookUp, Planned, Task, Waiting
from engine import child_process

_END_S = 10.0
_events: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def command() -> tuple[str, ...]:
    """What starts a worker: its program and arguments. It wants `child_process.environment()`."""
    return child_process.module("app.core.downloads.worker")


def encode(task: Task) -> bytes:
    """The line that a worker wants on its stdin."""
    return msgspec.json.encode(task) + b"\n"


class Worker:
    """A worker that runs; a context manager, which ends it."""

    def __init__(self, line: bytes) -> None:
        """`line` is its task, as `encode` makes it. Raises OSError where none can be started."""
        self._process = subprocess.Popen(
            command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_process.environment(),
            **child_process.detached(),
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        with contextlib.suppress(BrokenPipeError):
            self._in.write(line)
            self._in.flush()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def line(self) -> bytes:
        """The next line of its output, when it comes; empty at its end."""
        line: bytes = self._out.readline()
        return line

    def stop(self) -> None:
        """Ask it to stop; its last lines are still to be read."""
        with contextlib.suppress(BrokenPipeError):
            self._in.close()

    def kill(self) -> None:
        """End it at once. Nothing is lost by it."""
        self._process.kill()

    def wait(self) -> int:
        """Wait for its end, and enforce that. Returns its exit status."""
        try:
            return self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        self._out.close()
        self.wait()


def look_up(task: LookUp, told: Callable[[Waiting], None] | None = None) -> Planned:
    """Ask the hub what a request comes to. Waits for the answer: call it in a thread.

    `told` hears of pauses before another try. Raises DownloadError, with the worker's fault.
    """
    with Worker(encode(task)) as worker:
        while line := worker.line():
            event = _events.decode(line)
            if isinstance(event, Planned):
                return event
            if isinstance(event, Failed):
                fault = event.fault
                raise DownloadError(
                    fault.code, fault.message, hint=fault.hint, choices=fault.choices
                )
            if isinstance(event, Waiting) and told is not None:
                told(event)
    raise DownloadError("worker_died", "The process that asks the hub ended without an answer.")
