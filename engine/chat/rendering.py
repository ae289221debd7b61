"""Rendering templates in processes of their own, which are killed where a template runs away.

A template is a program from the model's author: Jinja's sandbox keeps it from Python's internals,
and nothing within a process bounds its time and memory. The processes know no model, so one
Renderer serves all of them.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import functools
import logging
import threading
import time
from collections.abc import Coroutine
from typing import Any

import psutil

from engine.chat.interruption import GivenUp, check
from engine.chat.render_frames import (
    HEADER_BYTES,
    Outcome,
    allowed_memory,
    answer_length,
    question,
    read_answer,
)
from engine.child_process import detached, environment, module
from engine.errors import HeadraceError
from engine.windows_job import own_job

log = logging.getLogger("headrace.templates")

RENDER_SECONDS = 3.0
SECONDS_PER_BYTE = 1e-6
"""Further time for each byte of a question."""
PROCESSES = 3
"""At most: one more than threads that only count tokens, so that an answer never waits for a count.
The second and third start when they are needed."""
START_SECONDS = 60.0
LOOK_SECONDS = 0.02
"""Between looks at how a render goes. A usual one is over before the first."""


class RenderStopped(Exception):
    """A limit was reached; the text follows "stopped: "."""


class RenderProcessFailed(HeadraceError):
    """The process that renders cannot be started, or ends by itself."""

    code = "template_process"


class _Ended(Exception):
    """The process was not there to the end."""


class _Process:
    """One process that renders, one question at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None  # started with pipes
        self._process, self._in, self._out = process, process.stdin, process.stdout

    @classmethod
    async def start(cls) -> _Process:
        """Raises RenderProcessFailed."""
        try:
            process = await asyncio.create_subprocess_exec(
                *module("engine.chat.render_process"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=environment(),
                **detached(),
            )
        except OSError as error:
            raise RenderProcessFailed(
                f"The process for chat templates did not start: {error}."
            ) from error
        own_job().add(process.pid)
        started = cls(process)
        try:
            await asyncio.wait_for(started._answer(), START_SECONDS)
        except (TimeoutError, _Ended) as error:
            await started.end()
            raise RenderProcessFailed(
                "The process for chat templates did not start.", hint="The log may say why."
            ) from error
        except asyncio.CancelledError:
            await started.end()
            raise
        return started

    @property
    def runs(self) -> bool:
        return self._process.returncode is None

    async def end(self) -> None:
        """Kill it, and take its last bytes and its exit status."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._in.close()
        with contextlib.suppress(ConnectionError):
            while await self._out.read(1 << 20):
                pass
        await self._process.wait()

    async def ask(self, frame: bytes) -> tuple[Outcome, str]:
        """Raises RenderStopped and _Ended; then, and when this is cancelled, the process must be
        ended: it may be in the midst of its work."""
        seconds = RENDER_SECONDS + SECONDS_PER_BYTE * len(frame)
        deadline = time.monotonic() + seconds
        asked = asyncio.ensure_future(self._exchange(frame))
        try:
            while True:
                done, _ = await asyncio.wait({asked}, timeout=LOOK_SECONDS)
                if done:
                    return asked.result()
                if time.monotonic() > deadline:
                    raise RenderStopped(f"it takes longer than {seconds:.3g} seconds")
                if self._memory() > allowed_memory(len(frame)):
                    raise RenderStopped("it takes too much memory")
        finally:
            asked.cancel()

    async def _exchange(self, frame: bytes) -> tuple[Outcome, str]:
        try:
            self._in.write(frame)
            await self._in.drain()
        except ConnectionError as error:
            raise _Ended from error
        return await self._answer()

    async def _answer(self) -> tuple[Outcome, str]:
        try:
            length = answer_length(await self._out.readexactly(HEADER_BYTES))
            return read_answer(await self._out.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError, ValueError) as error:
            raise _Ended from error

    def _memory(self) -> int:
        try:
            return int(psutil.Process(self._process.pid).memory_info().rss)
        except psutil.Error:
            return 0  # it has ended, as the exchange will tell


class Renderer:
    """Owns the processes, and a thread that watches them. Safe to use from several threads."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._turns = asyncio.Semaphore(PROCESSES)
        """A turn is held until its process rests, or has ended and is replaced."""
        self._idle: list[_Process] = []
        self._asked: set[asyncio.Task[Any]] = set()
        self._working: set[asyncio.Task[Any]] = set()
        """Replacing processes that were killed."""
        self._closing = False
        self._scheduling = threading.Lock()
        """Held to schedule a question and to begin closing: every question that is scheduled is
        ahead of the closing, which ends it."""
        # The processes live as long as the thread that has started them.
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="templates", daemon=True
        )
        self._thread.start()

    def ask(self, template: str, variables: dict[str, Any] | None) -> tuple[Outcome, str]:
        """What came of a template (see render_frames), once; blocks.

        Raises RenderStopped at a limit, GivenUp (engine.chat.interruption) and
        RenderProcessFailed.
        """
        frame = question(template, variables)
        with self._scheduling:
            if self._closing:
                raise GivenUp
            asked = asyncio.run_coroutine_threadsafe(self._ask(frame), self._loop)
        try:
            while not concurrent.futures.wait((asked,), timeout=LOOK_SECONDS).done:
                check()
            return asked.result()
        except concurrent.futures.CancelledError as error:
            raise GivenUp from error
        finally:
            asked.cancel()

    def close(self) -> None:
        """End the processes and what they do. Who asks, now or later, gets GivenUp."""
        with self._scheduling:
            self._closing = True
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _ask(self, frame: bytes) -> tuple[Outcome, str]:
        task = asyncio.current_task()
        assert task is not None
        self._asked.add(task)
        try:
            try:
                return await self._once(frame)
            except _Ended:
                log.warning("a process for chat templates ended by itself; asking another one")
            try:
                return await self._once(frame)
            except _Ended as error:
                raise RenderProcessFailed(
                    "The process for chat templates ended by itself, twice."
                ) from error
        finally:
            self._asked.discard(task)

    async def _once(self, frame: bytes) -> tuple[Outcome, str]:
        async with contextlib.AsyncExitStack() as turn:
            await turn.enter_async_context(self._turns)
            process = await self._process()
            try:
                outcome = await process.ask(frame)
            except BaseException:
                self._do(self._replace(process, turn.pop_all()))
                raise
            self._idle.append(process)
            return outcome

    async def _process(self) -> _Process:
        while self._idle:
            process = self._idle.pop()
            if process.runs:
                return process
        return await _Process.start()

    async def _replace(self, process: _Process, turn: contextlib.AsyncExitStack) -> None:
        """The next to ask shall not wait for a start."""
        async with turn:
            await process.end()
            with contextlib.suppress(RenderProcessFailed):  # whoever asks next is told
                if not self._idle and not self._closing:
                    self._idle.append(await _Process.start())

    def _do(self, work: Coroutine[Any, Any, Any]) -> None:
        task = self._loop.create_task(work)
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    async def _close(self) -> None:
        for task in self._asked:
            task.cancel()
        while self._working or self._asked:
            await asyncio.wait(self._working | self._asked)
        for process in self._idle:
            await process.end()


@functools.cache
def shared_renderer() -> Renderer:
    """The one of this process, until the process ends."""
    renderer = Renderer()
    atexit.register(renderer.close)
    return renderer
