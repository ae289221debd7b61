"""The database's tables, and how those of earlier versions become today's."""

from __future__ import annotations

import sqlite3

from app.core.chats.errors import NewerStore

_MIGRATIONS = (
    """
    CREATE TABLE conversation (
        id TEXT PRIMARY KEY,
        title TEXT NOT NULL,
        created REAL NOT NULL,
        updated REAL NOT NULL,
        leaf INTEGER NOT NULL,
        settings TEXT NOT NULL,
        deleted REAL,
        broken INTEGER NOT NULL DEFAULT 0
    );
    CREATE TABLE message (
        conversation TEXT NOT NULL REFERENCES conversation (id) ON DELETE CASCADE,
        number INTEGER NOT NULL,
        parent INTEGER NOT NULL,
        role TEXT NOT NULL,
        text TEXT NOT NULL,
        rest TEXT NOT NULL,
        PRIMARY KEY (conversation, number)
    );
    CREATE INDEX conversation_updated ON conversation (updated);
    """,
)
"""The script at index n makes version n + 1 of version n. Scripts are only ever added."""

VERSION = len(_MIGRATIONS)


def version_of(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def refuse_newer(connection: sqlite3.Connection) -> None:
    """Raises NewerStore where a later Headrace has written this database."""
    if version_of(connection) > VERSION:
        raise NewerStore


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the tables up to VERSION: each step whole or not at all."""
    refuse_newer(connection)
    for version in range(version_of(connection), VERSION):
        script = f"BEGIN; {_MIGRATIONS[version]} PRAGMA user_version = {version + 1}; COMMIT;"
        try:
            connection.executescript(script)
        except sqlite3.Error:
            if connection.in_transaction:
                connection.rollback()
            raise
