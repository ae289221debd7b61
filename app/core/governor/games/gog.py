"""GOG: the registry on Windows, the installers' usual folder elsewhere."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from app.core.governor.games.folders import GameFolder

LIBRARY = "GOG"
_KEY = r"SOFTWARE\GOG.com\Games"


def folders() -> list[GameFolder]:
    found = [GameFolder(str(Path.home() / "GOG Games"), LIBRARY)]
    if sys.platform == "win32":
        found = _registered()
    return found


if sys.platform == "win32":
    import winreg

    def _registered() -> list[GameFolder]:
        found = []
        access = winreg.KEY_READ | winreg.KEY_WOW64_32KEY
        with contextlib.suppress(OSError):
            games = winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, _KEY, 0, access)
            for index in range(winreg.QueryInfoKey(games)[0]):
                with winreg.OpenKey(games, winreg.EnumKey(games, index), 0, access) as game:
                    path, _ = winreg.QueryValueEx(game, "path")
                    title, _ = winreg.QueryValueEx(game, "gameName")
                    found.append(GameFolder(str(path), LIBRARY, str(title)))
        return found
