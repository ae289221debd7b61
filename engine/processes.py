"""Whether a process is still the one that was seen before. No torch, no Qt.

A pid alone proves nothing, since it is used again; a pid and a start time do. The start time by
the wall clock moves when somebody sets the clock, so where the system counts from its boot that
count decides, and elsewhere the wall clock does, with a tolerance.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

START_TOLERANCE_S = 2.0
"""By the wall clock: systems round start times, and derive them from clock ticks since boot."""
_BOOT_TOLERANCE_S = 0.05
_SECRET_OPTIONS = ("--api-key",)
_HIDDEN = "***"


class Start(NamedTuple):
    """When a process started."""

    wall: float
    """Seconds since 1970, as psutil's create_time."""
    since_boot: float
    """Seconds from the system's boot, which no setting of the clock moves; 0 where unknown."""


def start_of(pid: int) -> Start | None:
    """The start of a running process; None when there is none, or only its remains (a zombie)."""
    try:
        process = psutil.Process(pid)
        if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return None
        return Start(float(process.create_time()), _since_boot(pid))
    except (psutil.Error, ValueError, OverflowError):
        return None


def is_running(pid: int, started: float, since_boot: float = 0.0) -> bool:
    """Whether process `pid` runs and started then. `since_boot` 0: decided by the wall clock."""
    start = start_of(pid)
    if start is None:
        return False
    if since_boot > 0 and start.since_boot > 0:
        return abs(start.since_boot - since_boot) <= _BOOT_TOLERANCE_S
    return abs(start.wall - started) <= START_TOLERANCE_S


def without_secrets(command: Sequence[str]) -> list[str]:
    """A command line as it may be written down: with `***` for every key in it.

    Whoever compares a command line with a recorded one does this to both.
    """
    kept: list[str] = []
    for argument in command:
        option, equals, _ = argument.partition("=")
        if kept and kept[-1] in _SECRET_OPTIONS:
            kept.append(_HIDDEN)
        elif equals and option in _SECRET_OPTIONS:
            kept.append(option + equals + _HIDDEN)
        else:
            kept.append(argument)
    return kept


def _since_boot(pid: int) -> float:
    if sys.platform != "linux":
        return 0.0
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = Path(f"/proc/{pid}/stat").read_bytes()
        # The name, in brackets, may hold anything; starttime is the 20th field after it.
        return int(text[text.rindex(b")") + 2 :].split()[19]) / float(os.sysconf("SC_CLK_TCK"))
    return 0.0
