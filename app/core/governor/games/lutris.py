"""Lutris: its database of installed games."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from app.core.governor.games.folders import GameFolder

LIBRARY = "Lutris"


def folders(databases: list[Path]) -> list[GameFolder]:
    """Installed games with a folder of their own, as each `pga.db` lists them."""
    found: list[GameFolder] = []
    for path in databases:
        if not path.is_file():
            continue
        with (
            contextlib.suppress(sqlite3.Error),
            # Read only: another program's file, which it may be writing to.
            contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database,
        ):
            rows = database.execute(
                "SELECT name, directory FROM games WHERE installed = 1 AND directory != ''"
            )
            found += [GameFolder(str(folder), LIBRARY, str(name)) for name, folder in rows]
    return found
