"""Xbox games on Windows: each drive that holds some has a file that names their folder."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

from app.core.governor.games.folders import GameFolder

LIBRARY = "Xbox"
_MAGIC = b"RGBX"


def folders(drives: list[Path]) -> list[GameFolder]:
    found = []
    for drive in drives:
        with contextlib.suppress(OSError, ValueError, struct.error):
            for name in gaming_roots((drive / ".GamingRoot").read_bytes()):
                found.append(GameFolder(str(drive / name), LIBRARY))
    return found


def gaming_roots(body: bytes) -> list[str]:
    """Paths on that drive: the magic, their number, and each in UTF-16 up to a zero.

    Raises ValueError where the file is of another kind.
    """
    if body[:4] != _MAGIC:
        raise ValueError("not a list of game folders")
    (count,) = struct.unpack_from("<I", body, 4)
    names = body[8:].decode("utf-16-le").split("\0")
    return [name.strip("\\/") for name in names[:count] if name.strip("\\/")]
