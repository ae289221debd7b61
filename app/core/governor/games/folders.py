"""Folders of games, and which of them a program runs from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath


@dataclass(frozen=True)
class GameFolder:
    path: str
    library: str
    title: str = ""
    """Empty where every folder in it is a game, named like that folder."""


@dataclass(frozen=True)
class Game:
    library: str
    title: str


Library = Callable[[], list[GameFolder]]
"""Reads where one library has its games. It raises nothing: what cannot be read holds no games."""


class GameIndex:
    """Finds the game that a path belongs to; case and kind of slash do not matter."""

    def __init__(self, folders: Iterable[GameFolder]) -> None:
        self._folders: dict[tuple[str, ...], GameFolder] = {}
        for folder in folders:
            parts = _parts(folder.path)
            # A whole drive, or a folder like /home, is no game, whatever a library's file says.
            if len(parts) > 1:
                self._folders[tuple(part.casefold() for part in parts)] = folder

    def game_of(self, path: str) -> Game | None:
        parts = _parts(path)
        folded = tuple(part.casefold() for part in parts)
        for count in range(len(parts) - 1, 1, -1):
            folder = self._folders.get(folded[:count])
            if folder is None:
                continue
            if folder.title:
                return Game(folder.library, folder.title)
            if count < len(parts) - 1:  # not a file beside the games
                return Game(folder.library, parts[count])
        return None


def _parts(path: str) -> list[str]:
    r"""Parts of an absolute path of either system; Wine's Z:\home\… is /home/…."""
    if re.match(r"[A-Za-z]:[\\/]", path):
        drive, *rest = PureWindowsPath(path).parts
        return list(rest) if drive[0] in "zZ" else [drive[0], *rest]
    return list(PurePosixPath(path).parts[1:]) if path.startswith("/") else []


def text_of(value: object) -> str:
    """A string out of somebody else's file; anything else counts as absent."""
    return value if isinstance(value, str) else ""
