"""The runtime as a child process: spawning, frames on its pipes, its log, its end."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterable, Sequence

from engine import paths
from engine.child_process import detached, environment, module
from engine.messages import (
    HEADER_BYTES,
    AnyCommand,
    AnyEvent,
    Shutdown,
    body_length,
    pack,
    unpack_events,
)
from engine.server.runtime_end import RuntimeEnd, runtime_end
from engine.windows_job import own_job

log = logging.getLogger("headrace.runtime")

COMMAND = module("engine.runtime.process")
END_SECONDS = 5.0
"""Time a runtime gets to end by itself after Shutdown, and again after terminate."""
PIPES_S = 1.0
"""Time its pipes get to end after the process: a child that it left behind may hold them open."""
_LOG_LINES = 200
_LEVELS = {name: logging.getLevelName(name) for name in ("DEBUG", "INFO", "WARNING", "ERROR")}
_DUMP = "Fatal Python error"
"""Begins what Python's fault handler writes when the process crashes."""


class _Protocol(asyncio.subprocess.SubprocessStreamProtocol):
    """asyncio's streams, and the end of the process apart from the end of its pipes.

    A child of the runtime may hold the pipes open long after the runtime itself is gone.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(limit=1 << 16, loop=loop)
        self.exited = asyncio.Event()
        self.closed = asyncio.Event()
        """The process has ended and so have all of its pipes."""

    def process_exited(self) -> None:
        self.exited.set()
        super().process_exited()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        super().connection_lost(exc)


class RuntimeProcess:
    """One run of the runtime. Ends when its stdin closes, so it cannot outlive this process."""

    def __init__(self, transport: asyncio.SubprocessTransport, protocol: _Protocol) -> None:
        self._transport = transport
        self._protocol = protocol
        self.pid: int = transport.get_pid()
        own_job().add(self.pid)
        self._last_lines: collections.deque[str] = collections.deque(maxlen=_LOG_LINES)
        self._log_task = asyncio.create_task(self._forward_log())
        self._end_task = asyncio.create_task(self._settle())
        self.kill_reason = ""
        """Why this end of the pipe killed the process, if it did."""

    @classmethod
    async def spawn(cls, command: Sequence[str] = COMMAND) -> RuntimeProcess:
        transport, protocol = await asyncio.get_running_loop().subprocess_exec(
            _Protocol,
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(),
            **detached(),
        )
        return cls(transport, protocol)

    def post(self, *commands: AnyCommand) -> None:
        """Hand frames to the pipe without waiting. Raises ConnectionError when it is closed."""
        stdin = self._protocol.stdin
        if stdin is None or stdin.is_closing() or self._protocol.exited.is_set():
            raise ConnectionResetError("the runtime's pipe is closed")
        stdin.write(pack(list(commands)))

    async def send(self, *commands: AnyCommand) -> None:
        """Raises ConnectionError when the runtime is gone.

        The frames are on their way even when this is cancelled while the pipe is full.
        """
        self.post(*commands)
        assert self._protocol.stdin is not None  # spawned with a pipe
        await self._protocol.stdin.drain()

    async def events(self) -> AsyncIterator[AnyEvent]:
        """Records until the pipe ends. Raises ValueError when what comes is not a frame."""
        stdout = self._protocol.stdout
        assert stdout is not None  # spawned with a pipe
        while True:
            try:
                header = await stdout.readexactly(HEADER_BYTES)
                body = await stdout.readexactly(body_length(header))
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            for event in unpack_events(body):
                yield event

    async def wait_end(self) -> RuntimeEnd:
        """Wait for the process to end and say how it did; its last lines are kept in a file."""
        await asyncio.shield(self._end_task)
        if self.kill_reason:
            return RuntimeEnd(self.kill_reason)
        last_line = self._last_lines[-1] if self._last_lines else ""
        end = runtime_end(self._transport.get_returncode() or 0, last_line)
        kept = _keep(f"The runtime (pid {self.pid}) ended: {end.reason}.", self._last_lines)
        return RuntimeEnd(end.reason, " ".join(filter(None, [end.hint, kept])))

    def kill(self, reason: str) -> None:
        self.kill_reason = self.kill_reason or reason
        with contextlib.suppress(ProcessLookupError):
            self._transport.kill()

    async def close(self) -> None:
        """End the process: ask, then close its pipe, then terminate, then kill."""
        self.kill_reason = self.kill_reason or "it was shut down"
        try:
            with contextlib.suppress(ConnectionError, TimeoutError):
                await asyncio.wait_for(self.send(Shutdown()), END_SECONDS)
            if self._protocol.stdin is not None:
                self._protocol.stdin.close()
            if not await self._exits():
                with contextlib.suppress(ProcessLookupError):
                    self._transport.terminate()
                await self._exits()
        finally:
            # Whatever went wrong above, no process may be left.
            if not self._protocol.exited.is_set():
                self.kill(self.kill_reason)
            await self._end_task

    async def _exits(self) -> bool:
        try:
            await asyncio.wait_for(self._protocol.exited.wait(), END_SECONDS)
        except TimeoutError:
            log.warning("the runtime (pid %d) does not end by itself", self.pid)
            return False
        return True

    async def _settle(self) -> None:
        """After the end of the process: its group, its pipes, the last of its log."""
        await self._protocol.exited.wait()
        _kill_group(self.pid)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._protocol.closed.wait(), PIPES_S)
        self._transport.close()
        await asyncio.wait({self._log_task}, timeout=PIPES_S)
        self._log_task.cancel()

    async def _forward_log(self) -> None:
        stderr = self._protocol.stderr
        assert stderr is not None  # spawned with a pipe
        level = logging.INFO
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
                level, text = _record(line, level)
                log.log(level, "%s", text)


def _kill_group(leader: int) -> None:
    """End what a runtime has left behind; on Windows its job does that."""
    if sys.platform != "win32":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)


def _record(line: str, level: int) -> tuple[int, str]:
    """Level and text of a line of the runtime's log; `level` was the last line's."""
    name, _, text = line.partition(" ")
    if name in _LEVELS:
        return _LEVELS[name], text
    return (logging.ERROR if line.startswith(_DUMP) else level), line


def _keep(title: str, lines: Iterable[str]) -> str:
    """Write the last lines of a dead runtime to a file. Returns a sentence that says where."""
    path = paths.log_folder() / "runtime-crash.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        when = time.strftime("%Y-%m-%d %H:%M:%S")
        path.write_text("\n".join([f"{when} {title}", *lines, ""]), encoding="utf-8")
    except OSError as error:
        log.warning("the runtime's last lines were not kept: %s", error)
        return ""
    return f"Its last lines are in {path}."
