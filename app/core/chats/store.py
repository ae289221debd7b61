"""The database of conversations: list, search, load, save, delete with a way back.

All calls belong to one thread, and none of them to the interface's. Errors are StoreError.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec

from app.core.chats import salvage
from app.core.chats.errors import BrokenConversation, StoreError, store_error
from app.core.chats.records import Entry, Snapshot, conversation_of, entry_of, rest_of
from app.core.chats.schema import migrate, refuse_newer
from app.core.conversation import Conversation
from engine import paths

log = logging.getLogger(__name__)

_PAGES = 500_000
"""Of 4 KiB: a database of 2 GB is slow to search, and no person has written so much."""


def database() -> Path:
    return paths.home() / "chats.db"


class ConversationStore:
    """`most_pages`: of 4 KiB, the most that the database may have."""

    def __init__(self, path: Path, most_pages: int = _PAGES) -> None:
        self.path = path
        self._most_pages = most_pages
        self._connection: sqlite3.Connection | None = None

    def open(self) -> str:
        """Open the database, or make it. Returns a sentence where something was damaged, else "".

        A damaged file is set aside under another name, and what can be read of it is taken over.
        Raises NewerStore, StoreError.
        """
        with self._told():
            self._make_file()
            said = ""
            try:
                self._connection = self._connect()
            except sqlite3.DatabaseError as error:
                if not salvage.is_damage(error):
                    raise
                log.warning("%s is damaged: %s", self.path, error)
                said = salvage.set_aside(self.path)
                self._connection = self._connect()
            self._purge()
            return said

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def entries(self, wanted: str = "") -> list[Entry]:
        """Conversations, the newest first; with `wanted` those that have it in title or text."""
        with self._told():
            if not wanted.strip():
                rows = self._all("SELECT * FROM conversation ORDER BY updated DESC")
            else:
                rows = self._all(
                    "SELECT * FROM conversation WHERE has(title, ?1) OR id IN (SELECT "
                    "conversation FROM message WHERE has(text, ?1)) ORDER BY updated DESC",
                    wanted.strip().casefold(),
                )
            return list(self._readable(rows))

    def broken(self) -> int:
        """How many conversations cannot be read and stay aside."""
        with self._told():
            return len(self._all("SELECT id FROM conversation WHERE broken"))

    def load(self, id_: str) -> Conversation:
        """Raises BrokenConversation, after which it is listed no more and stays as it is."""
        with self._told():
            head = self._all("SELECT * FROM conversation WHERE id = ?", id_)
            rows = self._all("SELECT * FROM message WHERE conversation = ? ORDER BY number", id_)
            try:
                return conversation_of(head[0], rows)
            except (msgspec.MsgspecError, ValueError, TypeError, IndexError) as error:
                log.warning("conversation %s cannot be read: %s", id_, error)
                self._set_broken(id_)
                raise BrokenConversation(
                    "This conversation is damaged. It is kept as it is, but no longer listed."
                ) from error

    def save(self, snapshots: list[Snapshot]) -> None:
        """Write heads and messages, all or none."""
        with self._told(), self._connected as connection:
            for head in snapshots:
                settings = msgspec.json.encode(head.settings).decode()
                connection.execute(
                    "INSERT INTO conversation (id, title, created, updated, leaf, settings) "
                    "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET title = "
                    "excluded.title, updated = excluded.updated, leaf = excluded.leaf, "
                    "settings = excluded.settings WHERE NOT broken",
                    (head.id, head.title, head.created, head.updated, head.leaf, settings),
                )
                connection.executemany(
                    "INSERT OR REPLACE INTO message VALUES (?, ?, ?, ?, ?, ?)",
                    [
                        (head.id, m.number, m.parent, m.role, m.text, rest_of(m))
                        for m in head.messages
                    ],
                )

    def rename(self, id_: str, title: str) -> None:
        self._change("UPDATE conversation SET title = ? WHERE id = ?", title, id_)

    def delete(self, id_: str) -> None:
        """It can be had back by `restore` until the database is opened again."""
        self._change("UPDATE conversation SET deleted = ? WHERE id = ?", time.time(), id_)

    def restore(self, id_: str) -> None:
        self._change("UPDATE conversation SET deleted = NULL WHERE id = ?", id_)

    def erase(self, id_: str) -> None:
        """Remove a deleted one for good."""
        self._change("DELETE FROM conversation WHERE id = ? AND deleted IS NOT NULL", id_)

    # --- inside ---

    @property
    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreError("The conversations are not open.")
        return self._connection

    def _make_file(self) -> None:
        """Only their user reads them. A new file is empty, which is an empty database."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))

    def _connect(self) -> sqlite3.Connection:
        # Read-only at first: not a byte of what a newer version wrote is changed.
        with closing(sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True)) as looking:
            refuse_newer(looking)
            salvage.check(looking)
        connection = sqlite3.connect(self.path, isolation_level="IMMEDIATE")
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            # Survives a killed process; a power cut may take the last moments, but damages nothing.
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA secure_delete = ON")
            connection.execute(f"PRAGMA max_page_count = {self._most_pages}")
            connection.create_function("has", 2, _has, deterministic=True)
            migrate(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _readable(self, rows: list[tuple[object, ...]]) -> Iterator[Entry]:
        for row in rows:
            try:
                entry = entry_of(row)
            except msgspec.ValidationError as error:
                log.warning("a conversation cannot be read: %s", error)
                self._set_broken(row[0])
                continue
            if entry is not None:
                yield entry

    def _set_broken(self, id_: object) -> None:
        with self._connected as connection:
            connection.execute("UPDATE conversation SET broken = 1 WHERE id IS ?", (id_,))

    def _purge(self) -> None:
        with self._connected as connection:
            connection.execute("DELETE FROM conversation WHERE deleted IS NOT NULL")

    def _change(self, statement: str, *values: object) -> None:
        with self._told(), self._connected as connection:
            connection.execute(statement, values)

    def _all(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        return self._connected.execute(statement, values).fetchall()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise store_error(error, self.path) from error


def _has(text: object, wanted: str) -> bool:
    return isinstance(text, str) and wanted in text.casefold()
