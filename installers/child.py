"""Child processes that an interruption ends as a whole. Standard library only."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def run_apart(command: Sequence[str], folder: Path) -> int:
    """Run in `folder` to the end. Returns the exit code; minus a signal's number if one ended it.

    The child has a group of its own: Ctrl-C reaches this process alone. Whatever is raised here,
    such as KeyboardInterrupt, is raised after the whole group has been ended, so that nobody writes
    into the environment any more and no traceback of a child covers what is said.
    """
    child: subprocess.Popen[bytes] = subprocess.Popen(command, cwd=folder, **_apart())
    try:
        return child.wait()
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
