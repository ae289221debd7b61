"""The runtime as a child process: spawning, frames on its pipes, its log, its end."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import engine
from engine.messages import (
    HEADER_BYTES,
    AnyCommand,
    AnyEvent,
    Shutdown,
    body_length,
    pack,
    unpack_events,
)
from engine.server.windows_job import own_job

log = logging.getLogger("headrace.runtime")

COMMAND = (sys.executable, "-m", "engine.runtime.process")
END_SECONDS = 5.0
"""Time a runtime gets to end by itself after Shutdown, and again after terminate."""
_LOG_LINES = 12


class RuntimeProcess:
    """One run of the runtime. Ends when its stdin closes, so it cannot outlive this process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        own_job().add(process.pid)
        self._sending = asyncio.Lock()
        self._last_lines: collections.deque[str] = collections.deque(maxlen=_LOG_LINES)
        self._log_task = asyncio.create_task(self._forward_log())
        self.kill_reason = ""
        """Why this end of the pipe killed the process, if it did."""

    @classmethod
    async def spawn(cls, command: Sequence[str] = COMMAND) -> RuntimeProcess:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(),
            **_detached(),
        )
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def send(self, *commands: AnyCommand) -> None:
        """Raises ConnectionError when the runtime is gone."""
        stdin = self._process.stdin
        if stdin is None or stdin.is_closing():
            raise ConnectionResetError("the runtime's pipe is closed")
        async with self._sending:
            stdin.write(pack(list(commands)))
            await stdin.drain()

    async def events(self) -> AsyncIterator[AnyEvent]:
        """Records until the pipe ends. Raises ValueError when what comes is not a frame."""
        stdout = self._process.stdout
        assert stdout is not None  # spawned with a pipe
        while True:
            try:
                header = await stdout.readexactly(HEADER_BYTES)
                body = await stdout.readexactly(body_length(header))
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            for event in unpack_events(body):
                yield event

    async def wait_end(self) -> str:
        """Wait for the process to end and say how it did, in words."""
        code = await self._process.wait()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._log_task), 1.0)
        if self.kill_reason:
            return self.kill_reason
        return _ending(code) + self._last_words()

    def kill(self, reason: str) -> None:
        self.kill_reason = self.kill_reason or reason
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def close(self) -> None:
        """End the process: ask, then close its pipe, then terminate, then kill."""
        self.kill_reason = self.kill_reason or "it was shut down"
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(self.send(Shutdown()), END_SECONDS)
        if self._process.stdin is not None:
            self._process.stdin.close()
        for harder in (self._process.terminate, self._process.kill):
            try:
                await asyncio.wait_for(self._process.wait(), END_SECONDS)
                break
            except TimeoutError:
                log.warning("the runtime (pid %d) does not end by itself", self.pid)
                with contextlib.suppress(ProcessLookupError):
                    harder()
        await self._process.wait()
        await self._log_task

    async def _forward_log(self) -> None:
        stderr = self._process.stderr
        assert stderr is not None  # spawned with a pipe
        while True:
            try:
                raw = await stderr.readline()
            except ValueError:  # a line longer than the stream's buffer; the rest follows
                continue
            if not raw:
                return
            line = raw.decode("utf-8", "replace").rstrip()
            if line:
                self._last_lines.append(line)
                log.info("%s", line)

    def _last_words(self) -> str:
        return f"; it last said: {self._last_lines[-1]}" if self._last_lines else ""


def _ending(code: int) -> str:
    if code >= 0:
        return f"it ended with exit code {code}"
    try:
        return f"it was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"it was ended by signal {-code}"


def _environment() -> dict[str, str]:
    """The child finds the same `engine` package, wherever this process runs."""
    root = str(Path(engine.__file__).resolve().parent.parent)
    others = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([root, others]) if others else root
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def _detached() -> dict[str, Any]:
    """Ctrl-C in a terminal is for the server alone; it ends the runtime in order."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}
