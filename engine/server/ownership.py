"""Who owns this server: its record, the control token, and the owner that is watched."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil

import engine
from engine import api_keys, paths, processes
from engine.errors import InvalidRequest
from engine.private_files import write_private
from engine.server.service import Service

log = logging.getLogger("headrace.server")

POLL_S = 1.0


class ServerState(msgspec.Struct, kw_only=True):
    """The record by which the app finds, checks and re-adopts a running server."""

    pid: int
    started: float
    """The process's start time as psutil gives it: a recycled pid has another."""
    started_since_boot: float = 0.0
    """The same as engine.processes has it, which no setting of the clock moves; 0 if unknown."""
    argv: list[str]
    """Without keys, as processes.without_secrets has it."""
    host: str
    port: int
    version: str
    control_token_file: str
    owner_pid: int = 0
    owner_started: float = 0.0
    owner_started_since_boot: float = 0.0


class Ownership:
    """Two files for the life of the server, its own among those of others, and the watch over its
    owner.
    """

    def __init__(self, *, host: str, port: int, owner_pid: int = 0, grace_s: float = 60.0) -> None:
        me = psutil.Process()
        started = processes.start_of(me.pid) or processes.Start(me.create_time(), 0.0)
        self.token = secrets.token_urlsafe(32)
        folder = paths.servers_folder()
        self._state_file = folder / f"{me.pid}.json"
        self._token_file = folder / f"{me.pid}.token"
        self._grace_s = grace_s
        self._lost_at: float | None = None
        self._state = ServerState(
            pid=me.pid,
            started=started.wall,
            started_since_boot=started.since_boot,
            argv=processes.without_secrets(me.cmdline()),
            host=host,
            port=port,
            version=engine.__version__,
            control_token_file=str(self._token_file),
        )
        if owner_pid:
            # An owner that is gone already has no start time, and the grace begins now.
            self._set_owner(owner_pid, processes.start_of(owner_pid) or processes.Start(0.0, 0.0))

    @property
    def port(self) -> int:
        return self._state.port

    @property
    def owner_pid(self) -> int:
        return self._state.owner_pid

    def publish(self) -> None:
        """A server whose folder cannot be written runs without a record: no app finds it then."""
        try:
            _remove_left_behind()
            api_keys.make_local_key()
            write_private(self._token_file, self.token.encode())
            self._write_state()
        except OSError as error:
            self.withdraw()
            log.warning(
                "%s cannot be written (%s), so that the app will not find this server; "
                "HEADRACE_HOME names another folder",
                paths.home(),
                error.strerror,
            )

    def withdraw(self) -> None:
        for file in (self._state_file, self._token_file):
            with contextlib.suppress(OSError):
                file.unlink()

    def adopt(self, pid: int) -> None:
        """Raises InvalidRequest when no such process runs."""
        started = processes.start_of(pid)
        if started is None:
            raise InvalidRequest(f"There is no process {pid}.", param="pid")
        self._set_owner(pid, started)
        self._lost_at = None
        self._write_state()
        log.info("process %d owns this server now", pid)

    async def watch(self, service: Service, end: Callable[[str], None]) -> None:
        """Call `end` once the owner is gone and nobody was served for the time of grace."""
        while True:
            await asyncio.sleep(min(POLL_S, max(self._grace_s / 4, 0.05)))
            if not self._state.owner_pid or self._owner_lives():
                self._lost_at = None
                continue
            now = time.monotonic()
            if self._lost_at is None:
                self._lost_at = now
                log.warning(
                    "the owner (process %d) is gone; ending after %g s without requests",
                    self._state.owner_pid,
                    self._grace_s,
                )
            quiet_since = max(self._lost_at, service.last_served)
            if not service.serving and now - quiet_since >= self._grace_s:
                end(f"its owner, process {self._state.owner_pid}, is gone")
                return

    def _owner_lives(self) -> bool:
        state = self._state
        return processes.is_running(
            state.owner_pid, state.owner_started, state.owner_started_since_boot
        )

    def _set_owner(self, pid: int, started: processes.Start) -> None:
        self._state.owner_pid = pid
        self._state.owner_started = started.wall
        self._state.owner_started_since_boot = started.since_boot

    def _write_state(self) -> None:
        write_private(self._state_file, msgspec.json.encode(self._state))


def _remove_left_behind() -> None:
    """Remove the files of servers that were killed. A running one's record is always whole."""
    for file in paths.servers_folder().glob("*.json"):
        with contextlib.suppress(OSError):
            if not _is_of_a_running_server(file):
                file.with_suffix(".token").unlink(missing_ok=True)
                file.unlink()


def _is_of_a_running_server(file: Path) -> bool:
    """Raises OSError when the file cannot be read."""
    try:
        state = msgspec.json.decode(file.read_bytes(), type=ServerState)
    except msgspec.MsgspecError:
        return False
    return processes.is_running(state.pid, state.started, state.started_since_boot)
