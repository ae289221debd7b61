"""The libraries of this machine, each looked for where it is usually installed."""

from __future__ import annotations

import os
import string
import sys
from pathlib import Path

from app.core.governor.games import epic, gog, heroic, lutris, steam, xbox
from app.core.governor.games.folders import GameFolder


def game_folders() -> list[GameFolder]:
    """All folders of games that this user's libraries tell of."""
    found: list[GameFolder] = []
    if sys.platform == "win32":
        found = _on_windows()
    elif sys.platform == "linux":
        found = on_linux(Path.home())
    return found


def on_linux(home: Path) -> list[GameFolder]:
    """Of this home folder: native programs and those from Flathub and the Snap store."""
    flatpak = home / ".var" / "app"
    steams = [
        home / ".local/share/Steam",
        home / ".steam/steam",
        flatpak / "com.valvesoftware.Steam/.local/share/Steam",
        home / "snap/steam/common/.local/share/Steam",
    ]
    heroics = [home / ".config/heroic", flatpak / "com.heroicgameslauncher.hgl/config/heroic"]
    databases = [
        home / ".local/share/lutris/pga.db",
        flatpak / "net.lutris.Lutris/data/lutris/pga.db",
    ]
    return [
        *steam.folders(_distinct(steams)),
        *heroic.folders(heroics),
        *lutris.folders(databases),
        *gog.folders(),
    ]


def _distinct(paths: list[Path]) -> list[Path]:
    """Each folder once, under its own name: Steam links one of its usual places to the other."""
    return list({path.resolve(): None for path in paths if path.is_dir()})


if sys.platform == "win32":
    import contextlib
    import winreg

    def _on_windows() -> list[GameFolder]:
        steams = [Path(os.environ.get("PROGRAMFILES(X86)", "C:/Program Files (x86)"), "Steam")]
        with (
            contextlib.suppress(OSError),
            winreg.OpenKey(winreg.HKEY_CURRENT_USER, r"SOFTWARE\Valve\Steam") as key,
        ):
            steams.append(Path(winreg.QueryValueEx(key, "SteamPath")[0]))
        data = Path(os.environ.get("PROGRAMDATA", "C:/ProgramData"))
        roaming = Path(os.environ.get("APPDATA", Path.home() / "AppData/Roaming"))
        drives = [Path(f"{letter}:/") for letter in string.ascii_uppercase]
        return [
            *steam.folders(_distinct(steams)),
            *epic.folders(data / "Epic" / "EpicGamesLauncher" / "Data" / "Manifests"),
            *heroic.folders([roaming / "heroic"]),
            *gog.folders(),
            *xbox.folders(drives),
        ]
