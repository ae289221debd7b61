"""The Epic Games launcher on Windows: a manifest for each installed game."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from app.core.governor.games.folders import GameFolder

LIBRARY = "Epic Games"


class _Manifest(msgspec.Struct):
    location: str = msgspec.field(name="InstallLocation", default="")
    title: str = msgspec.field(name="DisplayName", default="")


def folders(manifests: Path) -> list[GameFolder]:
    """Games of the manifests (`*.item`) in a folder."""
    found = []
    for path in sorted(manifests.glob("*.item")):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            manifest = msgspec.json.decode(path.read_bytes(), type=_Manifest)
            if manifest.location and manifest.title:
                found.append(GameFolder(manifest.location, LIBRARY, manifest.title))
    return found
