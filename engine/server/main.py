"""`headrace serve`: bind, publish, start the runtime, serve until told to end, clean up."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec
import uvicorn

from engine.chat.model_files import locate
from engine.errors import ErrorRecord, told
from engine.options import DEFAULT_PORT, EngineOptions
from engine.server import exposure, listening
from engine.server.accepting import Acceptor, connection_bound
from engine.server.app import create_app
from engine.server.connection import KEEP_ALIVE_S, UNFINISHED_HEAD_BYTES, Connection
from engine.server.keys import KeyRing
from engine.server.ownership import Ownership
from engine.server.recording import Recorder
from engine.server.runtime_link import RecordedError, RuntimeLink
from engine.server.runtime_process import COMMAND
from engine.server.service import Service

log = logging.getLogger("headrace.server")

DRAIN_S = 3
"""Time that open connections get to take their last bytes once the server ends."""


@dataclass(frozen=True)
class ServeOptions:
    engine: EngineOptions
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    api_key: str = ""
    owner_pid: int = 0
    owner_grace_s: float = 60.0
    step_timeout_s: float = 120.0
    allow_hosts: tuple[str, ...] = field(default=())
    cors_origins: tuple[str, ...] = field(default=())
    """Web pages that may use the server, as browsers write their origins; `*` is all."""
    access_log: bool = True
    """Whether every request leaves a line in the log: method, path, status, time."""
    record: Path | None = None
    """File that gets a line for every request, with its body."""
    tool_parser: str = ""
    """Family of the model's reasoning and tool calls; "" means what its template shows."""
    runtime_command: tuple[str, ...] = COMMAND


def serve(options: ServeOptions) -> None:
    """Serve until a signal, a shutdown request or the owner's end.

    Raises PortInUse or ModelNotFound before anything runs, and why the model was given up when
    nobody owns the server (an owner reads it at /health instead).
    """
    place = locate(options.engine.model)
    listening.allow_many_connections()
    sockets = listening.listen(options.host, options.port)
    keys = KeyRing(options.api_key)
    recorder = None
    try:
        # The runtime gets the path that was found, so that both see one model.
        engine = msgspec.structs.replace(options.engine, model=str(place.path))
        port = sockets[0].getsockname()[1]
        ownership = Ownership(
            host=options.host,
            port=port,
            owner_pid=options.owner_pid,
            grace_s=options.owner_grace_s,
        )
        if options.record is not None:
            recorder = Recorder(options.record, lambda: [*keys.secrets(), ownership.token])
        link = RuntimeLink(
            engine, step_timeout_s=options.step_timeout_s, command=options.runtime_command
        )
        service = Service(place, options.engine.model, link, options.tool_parser)
        failure = asyncio.run(_Run(options, service, ownership, keys, recorder).until_end(sockets))
    finally:
        if recorder is not None:
            recorder.close()
        for sock in sockets:
            sock.close()
    if failure is not None:
        raise RecordedError(failure)


class _Uvicorn(uvicorn.Server):
    """Signals are this program's: uvicorn's handlers raise them again before it has cleaned up.

    So is accepting: see Acceptor.
    """

    _accepting: Sequence[asyncio.Task[None]] = ()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])

        def make() -> Connection:
            return Connection(self.config, self.server_state, self.lifespan.state)

        connections = cast(set[Connection], self.server_state.connections)
        acceptor = Acceptor(connections, make, connection_bound())
        self._accepting = [asyncio.create_task(acceptor.accept_on(one)) for one in sockets or ()]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for task in self._accepting:
            task.cancel()
        await asyncio.wait(self._accepting)
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class _Run:
    def __init__(
        self,
        options: ServeOptions,
        service: Service,
        ownership: Ownership,
        keys: KeyRing,
        recorder: Recorder | None,
    ) -> None:
        self._options = options
        self._service = service
        self._ownership = ownership
        self._ending = asyncio.Event()
        self._addresses: list[str] = []
        self._keys = keys
        app = create_app(
            service,
            ownership,
            self._end,
            keys=self._keys,
            allow_hosts=options.allow_hosts,
            cors_origins=options.cors_origins,
            access_log=options.access_log,
            recorder=recorder,
        )
        self._server = _Uvicorn(
            uvicorn.Config(
                app,
                http=Connection,
                h11_max_incomplete_event_size=UNFINISHED_HEAD_BYTES,
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                timeout_keep_alive=int(KEEP_ALIVE_S),
                proxy_headers=False,
                timeout_graceful_shutdown=DRAIN_S,
            )
        )

    async def until_end(self, sockets: list[socket.socket]) -> ErrorRecord | None:
        """Returns why the model was given up, where that is what ended the server."""
        service = self._service
        watches: list[asyncio.Task[Any]] = []
        self._addresses = [str(sock.getsockname()[0]) for sock in sockets]
        with _signals(self._end):
            self._ownership.publish()
            self._keys.on_change = self._keys_changed
            try:
                serving = asyncio.create_task(self._server.serve(sockets))
                service.start()
                self._announce()
                watches = [
                    asyncio.create_task(self._ownership.watch(service, self._end)),
                    asyncio.create_task(self._watch_failure()),
                ]
                await asyncio.wait(
                    {serving, asyncio.create_task(self._ending.wait())},
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for watch in watches:
                    watch.cancel()
                await service.close()
                self._server.should_exit = True
                await serving
            finally:
                self._ownership.withdraw()
        return service.link.failure if not self._ownership.owner_pid else None

    def _announce(self) -> None:
        options = self._options
        host = "127.0.0.1" if options.host == "localhost" else options.host
        print(f"Headrace listens on {listening.url(host, self._ownership.port)}", flush=True)
        if options.record is not None:
            log.warning(
                "every request is recorded in %s, prompts and answers too; only you can read it",
                options.record,
            )
        self._warn()

    def _keys_changed(self) -> None:
        wanted = "is wanted from now on" if self._keys.required else "is no longer wanted"
        log.warning("an API key %s", wanted)
        self._warn()

    def _warn(self) -> None:
        options, keys = self._options, self._keys.required
        for sentence in exposure.warnings(self._addresses, options.cors_origins, keys=keys):
            log.warning("%s", sentence)

    async def _watch_failure(self) -> None:
        """A model that is given up ends a server that nobody owns: its person sees the reason.

        Otherwise it would refuse every request for ever and nobody would be told.
        """
        failure = await self._service.link.wait_failed()
        if not self._ownership.owner_pid:
            self._end("the model was given up")
        else:
            # The owner shows this log; without one the program's last line says the same.
            log.error("the model was given up: %s", told(failure.message, failure.hint))

    def _end(self, reason: str) -> None:
        if not self._ending.is_set():
            log.info("the server ends: %s", reason)
            self._ending.set()


@contextlib.contextmanager
def _signals(end: Callable[[str], None]) -> Iterator[None]:
    """Ctrl-C, SIGTERM, a closed terminal (and Windows' Ctrl-Break) end the server in order.

    A signal that whoever started this program has set to be ignored, as nohup does, stays so.
    """
    loop = asyncio.get_running_loop()
    numbers = [signal.SIGINT, signal.SIGTERM]
    if sys.platform == "win32":
        numbers.append(signal.SIGBREAK)
    else:
        numbers.append(signal.SIGHUP)
    numbers = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]

    def handle(number: int) -> None:
        loop.call_soon_threadsafe(end, f"{signal.Signals(number).name} was received")

    before = {number: signal.signal(number, lambda n, _frame: handle(n)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
