"""GGUF files in a folder: a split model is one entry, a vision projector is none. Torch-free."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ModelFilesError

GGUF_BLOCKS = ("q8_0", "q4_0", "q4_1", "q4_k", "q6_k")
"""GGUF's blocks that are read, as formats of a StoredWeight: the file's names in lower case."""

_PART = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf")


@dataclass(frozen=True)
class GgufEntry:
    """One model: its files in order. `missing` names parts that are not there."""

    name: str
    parts: tuple[Path, ...]
    missing: tuple[str, ...] = ()


def is_projector(path: Path) -> bool:
    """mmproj files hold the vision tower that belongs to a text model; they are no chat model."""
    return "mmproj" in path.name.lower()


def entry_of(path: Path) -> GgufEntry:
    """The model that a .gguf file is, or is a part of (any part leads to all of them)."""
    match = _PART.fullmatch(path.name)
    if match is None:
        return GgufEntry(path.stem, (path,))
    count = int(match["count"])
    if not 1 <= int(match["part"]) <= count:
        raise ModelFilesError(f"{path}: part {match['part']} of {match['count']} cannot be")
    names = [f"{match['stem']}-{n:05d}-of-{count:05d}.gguf" for n in range(1, count + 1)]
    parts = tuple(path.parent / name for name in names)
    missing = tuple(part.name for part in parts if not part.is_file())
    return GgufEntry(match["stem"], parts, missing)


def entries(folder: Path) -> list[GgufEntry]:
    """The chat models among a folder's .gguf files."""
    found: dict[str, GgufEntry] = {}
    for path in sorted(folder.glob("*.gguf")):
        if not is_projector(path) and not path.is_dir():
            entry = entry_of(path)
            found.setdefault(entry.name, entry)
    return list(found.values())
