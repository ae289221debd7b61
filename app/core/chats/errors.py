"""Why conversations cannot be kept or read, in words."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from engine.errors import HeadraceError


class StoreError(HeadraceError):
    """Conversations cannot be kept or read now."""

    code = "chats"


class NewerStore(StoreError):
    """A later Headrace wrote the database; it is left as it is."""

    def __init__(self) -> None:
        super().__init__(
            "The kept conversations were written by a newer Headrace and are left untouched.",
            hint="Nothing is kept until that version is installed.",
        )


class BrokenConversation(StoreError):
    """One conversation cannot be read; it stays in the database as it is."""


_REASONS = {
    "SQLITE_FULL": "the disk is full",
    "SQLITE_READONLY": "the file cannot be written",
    "SQLITE_CANTOPEN": "the file cannot be opened",
    "SQLITE_PERM": "the file cannot be opened",
    "SQLITE_IOERR": "reading or writing failed",
    "SQLITE_BUSY": "another program holds the file",
}


def store_error(error: sqlite3.Error | OSError, path: Path) -> StoreError:
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
    else:
        # Extended codes, such as SQLITE_IOERR_WRITE, begin with the plain one.
        name = "_".join(str(getattr(error, "sqlite_errorname", "")).split("_")[:2])
        reason = _REASONS.get(name, str(error))
    return StoreError(f"Conversations are not being kept: {reason} ({path}).")
