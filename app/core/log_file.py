"""The server's log: kept small by rotation, followed by the Logs page."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

log = logging.getLogger(__name__)

MAX_LOG_BYTES = 4 << 20
KEPT_LOGS = 3
FIRST_READ_BYTES = 256 << 10
"""A long log is shown from its last lines on."""


def rotate(path: Path, max_bytes: int = MAX_LOG_BYTES, kept: int = KEPT_LOGS) -> bool:
    """Once the log exceeds `max_bytes`, keep it as `.1` (up to `.kept`) and start it anew.

    The server holds the file open for appending and a rename would leave it writing to the old
    one, so its content is copied and the file cut to nothing; a line that is written between the
    two is lost, which a log can bear.
    """
    try:
        if path.stat().st_size <= max_bytes:
            return False
        for number in range(kept - 1, 0, -1):
            older = path.with_name(f"{path.name}.{number}")
            if older.exists():
                older.replace(path.with_name(f"{path.name}.{number + 1}"))
        shutil.copyfile(path, path.with_name(f"{path.name}.1"))
        os.truncate(path, 0)
    except FileNotFoundError:
        return False
    except OSError as error:
        log.warning("cannot rotate %s: %s", path, error)
        return False
    return True


def last_lines(path: Path, count: int = 20, start: int = 0) -> list[str]:
    """The last lines written after byte `start`, without empty ones."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            begin = start if start <= end else 0  # the log was cut since
            file.seek(max(begin, end - (64 << 10)))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return lines[-count:]


class LogTail:
    """Reads what was added to a log since the last look; starts over when the file was cut."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = -1
        self._partial = b""

    def read_new(self) -> tuple[list[str], bool]:
        """New whole lines, and whether the file began anew (what was shown is another log's)."""
        try:
            with self.path.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                began_anew = self._offset > end
                if self._offset < 0 or began_anew:
                    self._start_at(max(0, end - FIRST_READ_BYTES))
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return [], False
        except OSError as error:
            log.warning("cannot read %s: %s", self.path, error)
            return [], False
        self._offset += len(data)
        *lines, self._partial = (self._partial + data).split(b"\n")
        return [line.decode("utf-8", "replace").rstrip("\r") for line in lines], began_anew

    def _start_at(self, offset: int) -> None:
        self._offset = offset
        self._partial = b""
