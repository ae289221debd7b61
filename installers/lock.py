"""One process at a time: a lock that ends with its process. Standard library only."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from installers.system_libraries import say

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


@contextlib.contextmanager
def only_one(guard: Path, waiting: str) -> Iterator[None]:
    """Hold the lock of the file `guard`. Where another process has it, say so and wait."""
    with guard.open("a") as file:
        if sys.platform == "win32":
            while True:
                with contextlib.suppress(OSError):
                    msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
                    break
        else:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(waiting)
                fcntl.flock(file, fcntl.LOCK_EX)
        yield
