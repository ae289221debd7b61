"""What every child process of the server has in common: its environment, its pipes, its end.

Nothing heavy is imported here: a child must watch its pipe before it loads anything.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

log = logging.getLogger("headrace.child")


def module(name: str) -> tuple[str, ...]:
    """The command that runs a module. With `-m` alone Python would look for every module in the
    current folder first, which may be one that somebody else filled: that of a model, say."""
    return (sys.executable, "-P", "-m", name)


def environment() -> dict[str, str]:
    """The child finds the same `engine` package, wherever this process runs."""
    root = str(Path(__file__).resolve().parent.parent)
    others = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([root, others]) if others else root
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def detached() -> dict[str, Any]:
    """Options of Popen: Ctrl-C in a terminal is for the parent alone, which ends the child in
    order."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


def claim_pipes() -> tuple[int, int]:
    """In the child: the descriptors of the parent's pipes, in and out.

    From here on descriptor 0 is empty and descriptor 1 is stderr: a stray print, of Python or of a
    native library, lands in the log and cannot break the frames.
    """
    read_fd, write_fd = os.dup(0), os.dup(1)
    if sys.platform == "win32":
        import msvcrt

        msvcrt.setmode(read_fd, os.O_BINARY)
        msvcrt.setmode(write_fd, os.O_BINARY)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    return read_fd, write_fd


def die_with_parent() -> None:
    """In the child, on Linux: have the kernel kill this process when the thread that started it
    ends.

    The closed pipe says the same everywhere; this also covers a reader thread that cannot run
    because a native call holds the interpreter lock. On Windows the parent's job does it.
    """
    if sys.platform != "linux":
        return
    set_parent_death_signal = 1
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0):
        log.warning("no parent-death signal: %s", os.strerror(ctypes.get_errno()))
