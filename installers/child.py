"""Child processes that an interruption ends as a whole. Standard library only."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


def run_apart(command: Sequence[str], folder: Path) -> int:
    """Run in `folder` to the end. Returns the exit code; minus a signal's number if one ended it.

    The child has a group of its own: Ctrl-C reaches this process alone. Whatever is raised here,
    such as KeyboardInterrupt, is raised after the whole group has been ended, so that nobody writes
    into the environment any more and no traceback of a child covers what is said.
    """
    with running_apart(command, folder) as child:
        return child.wait()


@contextlib.contextmanager
def running_apart(command: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """As `run_apart`, beside what is done within, which waits for the child in the end."""
    child: subprocess.Popen[bytes] = subprocess.Popen(command, cwd=folder, **_apart())
    try:
        yield child
        child.wait()
    except BaseException:
        _end_group(child)
        raise


def _apart() -> dict[str, Any]:
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


def _end_group(child: subprocess.Popen[bytes]) -> None:
    if sys.platform == "win32":
        command = ["taskkill", "/F", "/T", "/PID", str(child.pid)]
        subprocess.run(command, check=False, capture_output=True)
    else:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    child.wait()
