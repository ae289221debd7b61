"""Steam: its library folders, and the names of what is installed there."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from app.core.governor.games.folders import GameFolder

LIBRARY = "Steam"
_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*)"|([{}])')


def pairs(text: str) -> Iterator[tuple[str, str]]:
    """Every `"key" "value"` of a file in Valve's format (KeyValues), at any depth, in order."""
    key = ""
    for quoted, brace in _TOKEN.findall(text):
        if brace:
            key = ""
        elif not key:
            key = quoted
        else:
            yield key.casefold(), re.sub(r"\\(.)", r"\1", quoted)
            key = ""


def folders(roots: list[Path]) -> list[GameFolder]:
    """Where the Steam installed at any of `roots` has its games.

    Each `steamapps/common` counts as a whole, so that a game that was installed a minute ago is
    known, too; those with a manifest have their proper title.
    """
    found: dict[Path, None] = {}
    for root in roots:
        with contextlib.suppress(OSError):
            listing = root / "steamapps" / "libraryfolders.vdf"
            for key, value in pairs(listing.read_text(encoding="utf-8", errors="replace")):
                if key == "path":
                    found[Path(value) / "steamapps"] = None
        if (root / "steamapps").is_dir():
            found[root / "steamapps"] = None
    return [folder for apps in found for folder in _in_library(apps)]


def _in_library(apps: Path) -> Iterator[GameFolder]:
    common = apps / "common"
    yield GameFolder(str(common), LIBRARY)
    with contextlib.suppress(OSError):
        for path in sorted(apps.glob("appmanifest_*.acf")):
            manifest = _manifest(path)
            if manifest.get("installdir") and manifest.get("name"):
                yield GameFolder(str(common / manifest["installdir"]), LIBRARY, manifest["name"])


def _manifest(path: Path) -> dict[str, str]:
    return dict(pairs(path.read_text(encoding="utf-8", errors="replace")))
