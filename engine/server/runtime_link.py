"""The server's side of the pipe: starts the runtime, watches it, restarts it, routes its events."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from engine.errors import ErrorRecord, HeadraceError, RuntimeDied, RuntimeUnavailable
from engine.messages import (
    Admitted,
    AnyCommand,
    AnyEvent,
    Cancel,
    Configure,
    Fatal,
    Finished,
    Progress,
    Ready,
    ReportResidency,
    RequestFailed,
    Residency,
    Sampled,
    Stats,
    StatsReport,
    StepEnded,
    StepStarted,
    Submit,
    UseVocabulary,
)
from engine.options import EngineOptions
from engine.server.counters import with_earlier
from engine.server.request_stream import RequestStream
from engine.server.runtime_end import RuntimeEnd
from engine.server.runtime_process import COMMAND, RuntimeProcess

log = logging.getLogger("headrace.link")

State = Literal["starting", "loading", "ready", "restarting", "failed", "stopped"]

LOAD_ATTEMPTS = 2
"""A runtime that dies while it loads without saying why may have been unlucky once, not twice."""
CRASH_LIMIT = 5
CRASH_WINDOW_S = 600.0
BACK_OFF_S = (0.0, 0.5, 1.0, 2.0, 4.0)


class RecordedError(HeadraceError):
    """An error that was raised in the runtime, with its code and status there."""

    def __init__(self, record: ErrorRecord) -> None:
        super().__init__(record.message, hint=record.hint, param=record.param)
        self.code = record.code
        self.status = record.status


class RuntimeLink:
    """One model's runtime across its restarts. All methods belong to one event loop."""

    def __init__(
        self,
        options: EngineOptions,
        *,
        step_timeout_s: float = 120.0,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self.options = options
        self.state: State = "starting"
        self.progress = Progress(phase="starting")
        self.error: ErrorRecord | None = None
        """Why the state is failed, or why the last restart was needed."""
        self.failure: ErrorRecord | None = None
        """Why it was given up: no runtime will be started again."""
        self.vocabulary: Callable[[], UseVocabulary] | None = None
        """Set once the text side is loaded; called when a request needs it."""
        self.ready: Ready | None = None
        self._ever_ready = False
        self.restarts = 0
        self._restarted_at = 0.0
        self._command = tuple(command)
        self._step_timeout_s = step_timeout_s
        self._started_at = time.monotonic()
        self._stats = Stats()
        self._earlier = Stats()
        """Of the runtimes that have ended: their counters, as of their last report."""
        self._streams: dict[int, RequestStream] = {}
        self._cancelled: set[int] = set()
        self._numbers = itertools.count(1)
        self._runtime: RuntimeProcess | None = None
        self._taught: asyncio.Task[None] | None = None
        """The handing over of the vocabulary to this runtime."""
        self._task: asyncio.Task[None] | None = None
        self._step: tuple[int, float] | None = None
        self._heard_at = 0.0
        self._crashes: list[float] = []
        self._residency_waiters: list[asyncio.Future[Residency]] = []
        self._changed = asyncio.Event()
        self._closing = False

    # --- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._ran)

    def _ran(self, task: asyncio.Task[None]) -> None:
        """A mistake in this module must not look like a model that loads for ever."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("the link to the runtime failed", exc_info=error)
            record = RuntimeDied(f"The link to the runtime failed: {error}").record()
            self._set_failed(record)
            self._fail_live(record)

    async def wait_loaded(self, on_change: Callable[[], None] | None = None) -> Ready:
        """Wait until the model runs; `on_change` is called at any news. Raises the typed error."""
        while self.state != "ready":
            if self.state in ("failed", "stopped"):
                raise RecordedError(self.error) if self.error else self.unavailable()
            self._changed.clear()
            await self._changed.wait()
            if on_change is not None:
                on_change()
        assert self.ready is not None  # set with the state
        return self.ready

    async def wait_failed(self) -> ErrorRecord:
        """Wait until it is given up, be it while the model loads or years later."""
        while self.failure is None:
            self._changed.clear()
            await self._changed.wait()
        return self.failure

    def fail(self, error: ErrorRecord) -> None:
        """The server itself cannot serve this model (its tokenizer, say): the runtime ends."""
        self._set_failed(error)
        if self._runtime is not None:
            self._runtime.kill(error.message)

    async def close(self) -> None:
        """End the runtime and every live request. Returns when the process is gone."""
        self._closing = True
        self._fail_live(RuntimeUnavailable("The server is shutting down.").record())
        if self._runtime is not None:
            await self._runtime.close()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._set_state("stopped")

    # --- requests -----------------------------------------------------------------------------

    def unavailable(self) -> RuntimeUnavailable:
        """Why no request can be served now, as an error with the cause's own words."""
        if self.state == "failed" and self.error is not None:
            return RuntimeUnavailable(
                f"The model did not load: {self.error.message}", hint=self.error.hint
            )
        if self.state in ("loading", "starting"):
            progress = self.progress
            share = f" ({100 * progress.done // progress.total} %)" if progress.total else ""
            return RuntimeUnavailable(
                f"The model is loading: {progress.phase}{share}.", hint="Try again in a moment."
            )
        if self.state == "restarting":
            why = f": {self.error.message}" if self.error else ""
            return RuntimeUnavailable(
                f"The runtime is being restarted{why}", hint="Try again in a moment."
            )
        return RuntimeUnavailable(f"The runtime is {self.state}.")

    async def submit(self, submit: Submit) -> RequestStream:
        """Start a request; its number is chosen here. Raises RuntimeUnavailable, RuntimeDied."""
        if self.state != "ready":
            raise self.unavailable()
        if submit.grammar or submit.thinking is not None:
            await self._teach()
        number = next(self._numbers)
        stream = RequestStream(self, number)
        if not self._streams:
            self._heard_at = time.monotonic()  # silence before the first request was idleness
        self._streams[number] = stream
        try:
            await self.command(msgspec.structs.replace(submit, request=number))
        except ConnectionError as error:
            self._streams.pop(number, None)
            raise RuntimeDied("The runtime ended before it took the request.") from error
        except BaseException:
            # The client hung up while the pipe was full: the frame is written and will be read.
            self._streams.pop(number, None)
            with contextlib.suppress(ConnectionError):
                self._post(Cancel(request=number))
            raise
        return stream

    async def _teach(self) -> None:
        """The runtime knows the vocabulary afterwards. Raises RuntimeUnavailable, RuntimeDied."""
        if self._taught is None or (self._taught.done() and self._taught.exception()):
            self._taught = asyncio.create_task(self._hand_over_vocabulary())
        taught = self._taught
        with contextlib.suppress(ConnectionError):
            await asyncio.shield(taught)
        if taught is not self._taught or taught.exception():
            raise RuntimeDied("The runtime ended before it took the request.")

    async def _hand_over_vocabulary(self) -> None:
        runtime, vocabulary = self._runtime, self.vocabulary
        if vocabulary is None:
            raise RuntimeUnavailable("The tokenizer is loading.", hint="Try again in a moment.")
        if runtime is None:
            raise ConnectionResetError("no runtime runs")
        # Some hundred thousand small objects: not on the loop that serves everyone.
        await runtime.send(await asyncio.to_thread(vocabulary))

    async def command(self, *commands: AnyCommand) -> None:
        """Raises ConnectionError when there is no runtime."""
        if self._runtime is None:
            raise ConnectionResetError("no runtime runs")
        await self._runtime.send(*commands)

    def _post(self, *commands: AnyCommand) -> None:
        if self._runtime is None:
            raise ConnectionResetError("no runtime runs")
        self._runtime.post(*commands)

    async def cancel(self, request: int) -> None:
        if request in self._streams and request not in self._cancelled:
            self._cancelled.add(request)
            # A dead runtime has cancelled everything by itself.
            with contextlib.suppress(ConnectionError):
                await self.command(Cancel(request=request))

    async def residency(self) -> Residency:
        """Which experts have slots now. Raises RuntimeUnavailable."""
        if self.state != "ready":
            raise self.unavailable()
        waiter: asyncio.Future[Residency] = asyncio.get_running_loop().create_future()
        self._residency_waiters.append(waiter)
        try:
            await self.command(ReportResidency())
            return await waiter
        except ConnectionError as error:
            raise self.unavailable() from error
        finally:
            if waiter in self._residency_waiters:
                self._residency_waiters.remove(waiter)

    def stats(self, model: str) -> Stats:
        """The runtime's latest report, with the server's part filled in."""
        return msgspec.structs.replace(
            with_earlier(self._stats, self._earlier),
            state=self.state,
            model=model,
            server_uptime_s=time.monotonic() - self._started_at,
            runtime_pid=self._runtime.pid if self._runtime is not None else 0,
            runtime_restarts=self.restarts,
            runtime_restarted_at=self._restarted_at,
            last_error=self.error.message if self.error is not None else "",
        )

    # --- one runtime after another ------------------------------------------------------------

    async def _run(self) -> None:
        attempts_to_load = 0
        while True:
            if self._is_over():
                return
            was_ready, end = await self._one_life()
            if self._is_over():
                return
            attempts_to_load = 0 if was_ready else attempts_to_load + 1
            self._crashes = [
                at for at in self._crashes if time.monotonic() - at < CRASH_WINDOW_S
            ] + [time.monotonic()]
            # Files that loaded once will load again once the machine allows: only crashes count.
            never_loads = not self._ever_ready and attempts_to_load >= LOAD_ATTEMPTS
            if never_loads or len(self._crashes) > CRASH_LIMIT:
                times = attempts_to_load if never_loads else len(self._crashes)
                what = "while it loaded the model" if never_loads else "in a short time"
                self._set_failed(
                    RuntimeDied(
                        f"The runtime ended {times} times {what}: {end.reason}.",
                        hint=f"{end.hint} Then start the server again.".lstrip(),
                    ).record()
                )
                return
            self.restarts += 1
            self._restarted_at = time.time()
            pause = BACK_OFF_S[min(len(self._crashes), len(BACK_OFF_S)) - 1]
            log.warning("the runtime died: %s; restarting in %.1f s", end.reason, pause)
            await asyncio.sleep(pause)

    def _is_over(self) -> bool:
        return self._closing or self.failure is not None

    async def _one_life(self) -> tuple[bool, RuntimeEnd]:
        """Run a runtime until it ends. Returns whether it had been ready, and how it ended."""
        self.ready = None
        self._taught = None
        self._step = None
        self._earlier = with_earlier(self._stats, self._earlier)
        self._stats = Stats()
        self.progress = Progress(phase="starting")
        if self.state != "restarting":
            self._set_state("loading")
        try:
            runtime = await RuntimeProcess.spawn(self._command)
        except OSError as error:
            return False, RuntimeEnd(f"it could not be started: {error}")
        if self._is_over():  # while it was being spawned
            runtime.kill("it was not wanted any more")
            await runtime.close()
            return False, RuntimeEnd(runtime.kill_reason)
        self._runtime = runtime
        watchdog = asyncio.create_task(self._watch_steps(runtime))
        try:
            with contextlib.suppress(ConnectionError):  # its end is read below
                await runtime.send(Configure(options=self.options))
            await self._read(runtime)
            end = await runtime.wait_end()
        finally:
            watchdog.cancel()
        was_ready = self.ready is not None
        self._runtime = None
        self.ready = None
        if not self._is_over():
            self.error = RuntimeDied(f"The runtime died: {end.reason}.", hint=end.hint).record()
            self._set_state("restarting")
        self._fail_live(self._cause(end))
        return was_ready, end

    def _cause(self, end: RuntimeEnd) -> ErrorRecord:
        return self.error or RuntimeDied(f"The runtime ended: {end.reason}.").record()

    async def _read(self, runtime: RuntimeProcess) -> None:
        try:
            async for event in runtime.events():
                self._heard_at = time.monotonic()
                self._take(event)
        except (ValueError, msgspec.DecodeError, msgspec.ValidationError) as error:
            log.error("the runtime's stream is broken: %s", error)
            runtime.kill(f"its stream was broken ({error})")

    def _take(self, event: AnyEvent) -> None:
        match event:
            case Sampled() | Admitted():
                stream = self._streams.get(event.request)
                if stream is not None:
                    stream.push(event)
            case Finished() | RequestFailed():
                self._cancelled.discard(event.request)
                stream = self._streams.pop(event.request, None)
                if stream is not None:
                    stream.push(event)
            case StepStarted():
                self._step = (event.step, time.monotonic())
            case StepEnded():
                self._step = None
            case StatsReport():
                self._stats = event.stats
            case Progress():
                self.progress = event
                self._changed.set()
            case Ready() if self._is_over():
                pass  # it was on its way when the server gave this model up
            case Ready():
                self.ready = event
                self._ever_ready = True
                for note in event.notes:
                    log.info("%s", note)
                log.info("the model was loaded in %.1f s", event.load_seconds)
                self._set_state("ready")
            case Residency():
                for waiter in self._residency_waiters:
                    if not waiter.done():
                        waiter.set_result(event)
            case Fatal():
                self._fatal(event)

    def _fatal(self, event: Fatal) -> None:
        """While loading the cause is the model or the machine, so another try would end alike.

        Not so where the model has run before: memory that is short now may be free in a moment.
        """
        if not self._ever_ready:
            self._set_failed(event.error)
        if self._runtime is not None:
            self._runtime.kill_reason = event.error.message

    async def _watch_steps(self, runtime: RuntimeProcess) -> None:
        """Kill a runtime whose step does not end: a stuck kernel blocks every request.

        One that says nothing at all while requests wait is as stuck, though between steps.
        """
        while True:
            await asyncio.sleep(min(1.0, self._step_timeout_s / 4))
            longest = f"longer than {self._step_timeout_s:g} s"
            if self._step is not None:
                step, since = self._step
                if time.monotonic() - since > self._step_timeout_s:
                    runtime.kill(f"step {step} took {longest}")
                    return
            elif self._streams and time.monotonic() - self._heard_at > self._step_timeout_s:
                runtime.kill(f"it said nothing for {longest}")
                return

    def _fail_live(self, record: ErrorRecord) -> None:
        lost = Stats(requests_failed=len(self._streams))  # which no runtime counts any more
        self._earlier = with_earlier(self._earlier, lost)
        for number, stream in list(self._streams.items()):
            stream.push(RequestFailed(request=number, error=record))
        self._streams.clear()
        self._cancelled.clear()
        for waiter in self._residency_waiters:
            if not waiter.done():
                waiter.set_exception(self.unavailable())

    def _set_failed(self, error: ErrorRecord) -> None:
        self.error = self.failure = error
        self._set_state("failed")

    def _set_state(self, state: State) -> None:
        self.state = state
        self._changed.set()
