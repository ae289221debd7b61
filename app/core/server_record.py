"""The record that a running server leaves, and whether the process it names is still that one.

A pid alone proves nothing: it is reused. The process must also have the recorded start time and
the recorded command line before the app speaks to it as its own, let alone ends it.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import psutil

from engine import paths

log = logging.getLogger(__name__)

START_TOLERANCE_S = 2.0
"""psutil derives start times from clock ticks since boot; the clock may have been set since."""


class ServerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What `headrace serve` writes to the state file once it listens."""

    pid: int
    started: float
    """psutil's create_time of that pid."""
    argv: list[str] = []
    host: str = "127.0.0.1"
    port: int = 0
    version: str = ""
    control_token_file: str = ""
    owner_pid: int | None = None
    owner_started: float | None = None

    @property
    def url(self) -> str:
        """Base address for a client on this machine, without a slash at its end."""
        return f"http://{reachable_host(self.host)}:{self.port}"

    @property
    def owned(self) -> bool:
        """Whether some app started it (by hand it belongs to nobody)."""
        return bool(self.owner_pid)

    def control_token(self) -> str:
        """The secret that changes to the engine want; empty where it cannot be read."""
        try:
            return Path(self.control_token_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            log.warning("cannot read the control token: %s", error)
            return ""


def reachable_host(host: str) -> str:
    """The address to connect to for a server that listens on `host`."""
    if host in ("", "0.0.0.0"):
        return "127.0.0.1"
    if host in ("::", "[::]"):
        return "[::1]"
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def read(path: Path | None = None) -> ServerRecord | None:
    """The record in the state file, or None where there is none that can be read."""
    path = path or paths.state_file()
    try:
        return msgspec.json.decode(path.read_bytes(), type=ServerRecord)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        log.warning("ignoring %s: %s", path, error)
        return None


def is_running(record: ServerRecord) -> bool:
    """Whether the recorded process still runs: same pid, same start time, same command line."""
    try:
        process = psutil.Process(record.pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        if abs(process.create_time() - record.started) > START_TOLERANCE_S:
            return False
        return same_command(record.argv, process.cmdline())
    except psutil.AccessDenied:
        # Another user's process cannot be this user's server.
        return False
    except psutil.Error:
        return False


def same_command(recorded: list[str], actual: list[str]) -> bool:
    """Whether two command lines are one. The interpreter's own spelling and `-m` may differ."""
    if not recorded:
        return False
    if recorded == actual:
        return True
    tail = recorded[1:]
    return bool(tail) and actual[-len(tail) :] == tail


def running_server(path: Path | None = None) -> ServerRecord | None:
    """The record of a server that runs now."""
    record = read(path)
    return record if record is not None and is_running(record) else None


def end_process(record: ServerRecord) -> bool:
    """Kill the recorded process, if it is still that one. False where it was gone already."""
    if not is_running(record):
        return False
    try:
        psutil.Process(record.pid).kill()
    except psutil.NoSuchProcess:
        return False
    return True
