"""Heroic: games of Epic, GOG and Amazon on Linux, and those that were added by hand."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import msgspec

from app.core.governor.games.folders import GameFolder, text_of

LIBRARY = "Heroic"
_LISTS = (
    "legendaryConfig/legendary/installed.json",
    "gog_store/installed.json",
    "nile_config/nile/installed.json",
    "sideload_apps/library.json",
)


def folders(roots: list[Path]) -> list[GameFolder]:
    """Games listed in Heroic's configuration at any of `roots`."""
    found = []
    for root in roots:
        for name in _LISTS:
            with contextlib.suppress(OSError, msgspec.DecodeError):
                found += _entries(msgspec.json.decode((root / name).read_bytes()))
    return found


def _entries(content: Any) -> list[GameFolder]:
    """Entries are a list, or keyed by the app's name, or below `installed` or `games`."""
    if isinstance(content, dict):
        content = content.get("installed", content.get("games", list(content.values())))
    found = []
    for entry in content if isinstance(content, list) else []:
        if not isinstance(entry, dict):
            continue
        path = text_of(entry.get("install_path")) or text_of(entry.get("path"))
        path = path or text_of(entry.get("folder_name"))
        if path:
            found.append(GameFolder(path, LIBRARY, text_of(entry.get("title")) or _last(path)))
    return found


def _last(path: str) -> str:
    return path.replace("\\", "/").rstrip("/").rpartition("/")[2]
