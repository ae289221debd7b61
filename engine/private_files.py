"""Files that only their user may read, replaced whole. Standard library."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_REPLACE_TRIES, _REPLACE_PAUSE_S = 20, 0.02


def write_private(path: Path, content: bytes) -> None:
    """Replace a file at once, readable by its user only. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    # The mode is given when the file is made: there is no moment in which others could read it.
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def replace(draft: Path, path: Path) -> None:
    """`draft.replace(path)`, tried again where Windows refuses. Raises OSError.

    It refuses while another program has the file open, which readers do for a moment."""
    for _ in range(_REPLACE_TRIES):
        try:
            draft.replace(path)
            return
        except PermissionError:
            if os.name != "nt":
                raise
            time.sleep(_REPLACE_PAUSE_S)
    draft.replace(path)


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """While it holds, no other process is inside the same call. Raises OSError, which is a
    BlockingIOError where another process is, and this one does not wait.

    `path` is a file of no content that stays; the system lets go of it when its process ends.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if sys.platform == "win32":
            import msvcrt

            try:
                msvcrt.locking(handle, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
            except PermissionError as error:
                if wait:
                    raise
                raise BlockingIOError(error.errno, error.strerror, str(path)) from error
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(handle)
