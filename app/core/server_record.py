"""The records that running servers leave, and whether the process one names is still that one.

A pid alone proves nothing: it is reused. The process must also have the recorded start time and
the recorded command line before the app speaks to it as its own, let alone ends it.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec
import psutil

from engine import paths, processes

log = logging.getLogger(__name__)


class ServerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What `headrace serve` writes to a file of its own once it listens."""

    pid: int
    started: float
    """psutil's create_time of that pid."""
    started_since_boot: float = 0.0
    """The same as engine.processes tells it; 0 where unknown."""
    argv: list[str] = []
    host: str = "127.0.0.1"
    port: int = 0
    version: str = ""
    control_token_file: str = ""
    owner_pid: int = 0
    """0 where it was started by hand."""
    owner_started: float = 0.0
    owner_started_since_boot: float = 0.0

    @property
    def url(self) -> str:
        """Base address for a client on this machine, without a slash at its end."""
        return f"http://{reachable_host(self.host)}:{self.port}"

    @property
    def orphaned(self) -> bool:
        """Whether its owner is gone, or is this process. By hand it belongs to somebody else."""
        if self.owner_pid in (0, os.getpid()):
            return bool(self.owner_pid)
        return not processes.is_running(
            self.owner_pid, self.owner_started, self.owner_started_since_boot
        )

    def control_token(self) -> str:
        """The secret that changes to the engine want; empty where it cannot be read."""
        try:
            return Path(self.control_token_file).read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return ""  # the server has just ended
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


def read(path: Path) -> ServerRecord | None:
    """The record in this file, or None where there is none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ServerRecord)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        log.warning("ignoring %s: %s", path, error)
        return None


def is_running(record: ServerRecord) -> bool:
    """Whether the recorded process still runs: same pid, same start time, same command line."""
    if not processes.is_running(record.pid, record.started, record.started_since_boot):
        return False
    try:
        actual = processes.without_secrets(psutil.Process(record.pid).cmdline())
        return same_command(record.argv, actual)
    except psutil.Error:
        # Gone since, or another user's, which cannot be this user's server.
        return False


def same_command(recorded: list[str], actual: list[str]) -> bool:
    """Whether two command lines are one. The interpreter's own spelling and `-m` may differ."""
    if not recorded:
        return False
    if recorded == actual:
        return True
    tail = recorded[1:]
    return bool(tail) and actual[-len(tail) :] == tail


def running_servers() -> list[ServerRecord]:
    """The records of all servers of this user that run now, the one that started first at first."""
    found = [read(path) for path in paths.servers_folder().glob("*.json")]
    running = [record for record in found if record is not None and is_running(record)]
    return sorted(running, key=lambda record: record.started)


def to_use(servers: list[ServerRecord], port: int) -> ServerRecord | None:
    """Which of the running servers an app that wants one at this port goes on with: one that an
    app has left behind, else one that somebody started at that very port. None: start another.
    """
    able = [one for one in servers if one.orphaned or one.port == port]
    return min(able, key=lambda one: (not one.orphaned, one.port != port), default=None)


def end_process(record: ServerRecord) -> bool:
    """Kill the recorded process, if it is still that one. False where it was gone already."""
    if not is_running(record):
        return False
    try:
        psutil.Process(record.pid).kill()
    except psutil.NoSuchProcess:
        return False
    return True
