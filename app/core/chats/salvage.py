"""A damaged database: told from other trouble, set aside, and read as far as it can be."""

from __future__ import annotations

import logging
import shutil
import sqlite3
import struct
import time
from contextlib import closing
from pathlib import Path

from app.core import units
from app.core.chats.schema import migrate, version_of

log = logging.getLogger(__name__)

_DAMAGE = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
_BESIDE = ("-wal", "-shm")
_HEADER = struct.Struct(">16xH10xI")
"""Size of a page, 1 for 65,536, and number of pages (SQLite's file format, section 1.3)."""
_MOST_BYTES = 8 << 30


def is_damage(error: sqlite3.Error) -> bool:
    return str(getattr(error, "sqlite_errorname", "")).startswith(_DAMAGE)


class _Damaged(sqlite3.DatabaseError):
    sqlite_errorname = "SQLITE_CORRUPT"


def check(connection: sqlite3.Connection) -> None:
    """Raises sqlite3.DatabaseError where the file is damaged. Reads all of it."""
    found = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != ("ok",):
        raise _Damaged(str(found))


def set_aside(path: Path) -> str:
    """Put what can be read of the damaged database into a new one, and the old one beside it.

    Returns a sentence. Raises sqlite3.Error or OSError where the new one cannot be written; then
    the old one is where it was.
    """
    fresh = path.with_name(f"{path.name}.new")
    for left in (fresh, *_beside(fresh)):
        left.unlink(missing_ok=True)
    fresh.touch(mode=0o600)
    with closing(sqlite3.connect(fresh)) as new:
        migrate(new)
        saved = _copy_readable(path, new)
    aside = path.with_name(f"{path.name}.damaged-{int(time.time())}")
    for old, kept in zip((path, *_beside(path)), (aside, *_beside(aside)), strict=True):
        if old.exists():
            old.replace(kept)
    fresh.replace(path)
    return (
        f"The file of conversations was damaged; {units.counted(saved, 'conversation')} could be "
        f"read. The damaged file is kept as {aside}."
    )


def _copy_readable(path: Path, new: sqlite3.Connection) -> int:
    """Conversations that were copied whole."""
    spare = path.with_name(f"{path.name}.reading")
    try:
        _copy_to_length(path, spare)
        with closing(sqlite3.connect(spare)) as old:
            if version_of(old) != version_of(new):
                return 0
            last = old.execute("SELECT max(rowid) FROM conversation").fetchone()[0] or 0
            return sum(_copy_one(old, new, rowid) for rowid in range(1, last + 1))
    except sqlite3.DatabaseError as error:
        log.warning("nothing can be read of %s: %s", path, error)
        return 0
    finally:
        for left in (spare, *_beside(spare)):
            left.unlink(missing_ok=True)


def _copy_to_length(path: Path, spare: Path) -> None:
    """A copy that is as long as its header says: SQLite reads nothing at all of one cut short."""
    spare.touch(mode=0o600)
    for old, copy in zip((path, *_beside(path)[:1]), (spare, *_beside(spare)[:1]), strict=True):
        if old.exists():
            shutil.copyfile(old, copy)
    with spare.open("r+b") as file:
        header = file.read(_HEADER.size)
        if len(header) == _HEADER.size:
            page, pages = _HEADER.unpack(header)
            length = (page if page > 1 else 1 << 16) * pages
            if spare.stat().st_size < length <= _MOST_BYTES:
                file.truncate(length)


def _copy_one(old: sqlite3.Connection, new: sqlite3.Connection, rowid: int) -> bool:
    try:
        head = old.execute("SELECT * FROM conversation WHERE rowid = ?", (rowid,)).fetchone()
        if head is None:
            return False
        messages = old.execute("SELECT * FROM message WHERE conversation = ?", head[:1]).fetchall()
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        log.warning("conversation %d cannot be read: %s", rowid, error)
        return False
    with new:
        new.execute(f"INSERT INTO conversation VALUES ({_marks(head)})", head)
        for message in messages:
            new.execute(f"INSERT INTO message VALUES ({_marks(message)})", message)
    return True


def _marks(row: tuple[object, ...]) -> str:
    return ", ".join("?" * len(row))


def _beside(path: Path) -> tuple[Path, ...]:
    return tuple(path.with_name(path.name + ending) for ending in _BESIDE)
