"""What the person wants of the governor: its mode, and the settings that concern it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import PureWindowsPath

from app.core.governor.evidence import Program

GIB = 1 << 30
HEADROOM_BYTES = GIB
HEADROOM_SHARE = 0.08
"""Of the GPU's memory. On Linux nothing spills: a program that finds no VRAM fails."""


class Mode(StrEnum):
    AUTO = "auto"
    PAUSED = "paused"
    """The engine keeps what it has, whatever other programs do."""
    GIVE_BACK = "give_back"
    """The engine gives back everything, until the person says otherwise."""


@dataclass(frozen=True)
class Policy:
    mode: Mode = Mode.AUTO
    always: tuple[str, ...] = ()
    """Programs that are given room as games are: file names, paths or titles of games."""
    never: tuple[str, ...] = ()
    """Programs that are given none. Where a program is in both, this counts."""
    headroom_bytes: int = 0
    """VRAM that is kept free for whatever comes; 0 for the default."""

    def headroom(self, total_bytes: int) -> int:
        if self.headroom_bytes:
            return min(self.headroom_bytes, total_bytes)
        return max(HEADROOM_BYTES, round(HEADROOM_SHARE * total_bytes))

    def wants_room(self, program: Program) -> bool:
        return _listed(program, self.always) and not self.refuses(program)

    def refuses(self, program: Program) -> bool:
        return _listed(program, self.never)


def _listed(program: Program, entries: tuple[str, ...]) -> bool:
    if not entries:
        return False
    names = {_plain(name) for name in (program.name, program.path, program.game) if name}
    return any(_plain(entry) in names for entry in entries)


def _plain(name: str) -> str:
    """As people type it: any case, any slashes, with or without .exe."""
    return str(PureWindowsPath(name.strip())).casefold().removesuffix(".exe")
