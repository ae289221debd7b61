"""Where games are, read from files as the libraries write them."""

import json
import sqlite3
from pathlib import Path

import pytest

from app.core.governor.games import epic, here, heroic, lutris, steam, xbox
from app.core.governor.games.folders import Game, GameFolder, GameIndex
from app.core.governor.ordinary import fills_screens, is_helper, is_tool

LIBRARY_FOLDERS = r"""
"libraryfolders"
{
	"0"
	{
		"path"		"%s"
		"label"		"two \"words\""
		"apps" { "228980" "472134" }
	}
	"1"
	{
		"path"		"%s"
	}
}
"""
MANIFEST = """
"AppState"
{
	"appid"		"1245620"
	"name"		"ELDEN RING™"
	"installdir"		"ELDEN RING"
	"UserConfig" { "language" "english" }
}
"""


class TestSteam:
    def test_libraries_and_titles(self, tmp_path: Path) -> None:
        root, second = tmp_path / "Steam", tmp_path / "Games D"
        for apps in (root / "steamapps", second / "steamapps"):
            apps.mkdir(parents=True)
        listing = LIBRARY_FOLDERS % (root, second)
        (root / "steamapps" / "libraryfolders.vdf").write_text(listing)
        (second / "steamapps" / "appmanifest_1245620.acf").write_text(MANIFEST, encoding="utf-8")
        index = GameIndex(steam.folders([root, tmp_path / "nowhere"]))
        common = second / "steamapps" / "common"
        game = index.game_of(str(common / "ELDEN RING" / "Game" / "eldenring.exe"))
        assert game == Game("Steam", "ELDEN RING™")
        fresh = index.game_of(str(root / "steamapps/common/Just Installed/bin/game"))
        assert fresh == Game("Steam", "Just Installed")
        assert index.game_of(str(root / "ubuntu12_32" / "steam")) is None
        assert index.game_of(str(common / "stray-file")) is None

    def test_windows_paths_in_the_list(self) -> None:
        text = r'"libraryfolders" { "0" { "path" "D:\\SteamLibrary" } }'
        assert list(steam.pairs(text)) == [("path", r"D:\SteamLibrary")]

    def test_broken_files_hold_no_games(self, tmp_path: Path) -> None:
        apps = tmp_path / "steamapps"
        apps.mkdir()
        (apps / "libraryfolders.vdf").write_bytes(b'\xff\xfe"path" "')
        (apps / "appmanifest_1.acf").write_bytes(b'"name" }{ "\x00')
        assert steam.folders([tmp_path]) == [GameFolder(str(apps / "common"), "Steam")]


def test_heroic_s_lists(tmp_path: Path) -> None:
    legendary = tmp_path / "legendaryConfig" / "legendary"
    gog, nile = tmp_path / "gog_store", tmp_path / "nile_config" / "nile"
    added = tmp_path / "sideload_apps"
    for folder in (legendary, gog, nile, added):
        folder.mkdir(parents=True)
    epic_entry = {"title": "Control", "install_path": "/games/Control"}
    (legendary / "installed.json").write_text(json.dumps({"Calluna": epic_entry}))
    gog_entry = {"appName": "1207", "install_path": "/games/The Witcher"}
    (gog / "installed.json").write_text(json.dumps({"installed": [gog_entry, 7]}))
    (nile / "installed.json").write_text(json.dumps([{"id": "x", "path": "/games/Amazon One"}]))
    own = {"title": "Mine", "folder_name": "/games/mine"}
    (added / "library.json").write_text(json.dumps({"games": [own, {"title": "no folder"}]}))
    assert heroic.folders([tmp_path, tmp_path / "none"]) == [
        GameFolder("/games/Control", "Heroic", "Control"),
        GameFolder("/games/The Witcher", "Heroic", "The Witcher"),
        GameFolder("/games/Amazon One", "Heroic", "Amazon One"),
        GameFolder("/games/mine", "Heroic", "Mine"),
    ]
    (legendary / "installed.json").write_text("{")
    assert len(heroic.folders([tmp_path])) == 3


def test_lutris_s_database(tmp_path: Path) -> None:
    (tmp_path / "lutris").mkdir()
    path = tmp_path / "lutris" / "pga.db"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE games (name TEXT, directory TEXT, installed INTEGER)")
    rows = [("Diablo", "/games/diablo", 1), ("Gone", "/games/gone", 0), ("Web", "", 1)]
    database.executemany("INSERT INTO games VALUES (?, ?, ?)", rows)
    database.commit()
    database.close()
    assert lutris.folders([path]) == [GameFolder("/games/diablo", "Lutris", "Diablo")]
    before = path.stat().st_mtime_ns
    lutris.folders([path])
    assert path.stat().st_mtime_ns == before and list(path.parent.iterdir()) == [path]
    path.write_bytes(b"no database")
    assert lutris.folders([path, tmp_path / "none.db"]) == []


def test_epic_s_manifests(tmp_path: Path) -> None:
    item = {"DisplayName": "Hades", "InstallLocation": r"C:\Epic\Hades", "bIsApplication": True}
    (tmp_path / "1.item").write_text(json.dumps(item))
    (tmp_path / "2.item").write_text("half a ma")
    (tmp_path / "3.item").write_text(json.dumps({"DisplayName": 3}))
    assert epic.folders(tmp_path) == [GameFolder(r"C:\Epic\Hades", "Epic Games", "Hades")]
    assert epic.folders(tmp_path / "none") == []


def test_xbox_s_list_of_a_drive(tmp_path: Path) -> None:
    names = "XboxGames\0".encode("utf-16-le")
    (tmp_path / ".GamingRoot").write_bytes(b"RGBX" + (1).to_bytes(4, "little") + names)
    (folder,) = xbox.folders([tmp_path, tmp_path / "none"])
    assert folder == GameFolder(str(tmp_path / "XboxGames"), "Xbox")
    index = GameIndex([folder])
    inside = tmp_path / "XboxGames" / "Forza Horizon 5" / "Content" / "forza.exe"
    assert index.game_of(str(inside)) == Game("Xbox", "Forza Horizon 5")
    for wrong in (b"", b"RGBX", b"ABCD\1\0\0\0", b"RGBX\1\0\0\0a"):
        (tmp_path / ".GamingRoot").write_bytes(wrong)
        assert xbox.folders([tmp_path]) == []


class TestIndex:
    def test_case_slashes_and_wine_s_drive(self) -> None:
        folders = [GameFolder("/home/u/Games/Doom", "GOG", "DOOM"), GameFolder(r"D:\G", "Epic")]
        index = GameIndex(folders)
        assert index.game_of(r"Z:\home\u\Games\Doom\doom.exe") == Game("GOG", "DOOM")
        assert index.game_of(r"d:\g\Hades\x64\Hades.exe") == Game("Epic", "Hades")
        assert index.game_of("D:/G/Hades/Hades.exe") == Game("Epic", "Hades")
        assert index.game_of("/home/u/Games/Doomed/doom") is None
        assert index.game_of("") is None and index.game_of("doom.exe") is None

    @pytest.mark.parametrize("path", ["/", "C:\\", "/home", "relative/path", ""])
    def test_a_library_that_claims_everything_is_not_believed(self, path: str) -> None:
        index = GameIndex([GameFolder(path, "Odd", "Everything")])
        assert index.game_of("/home/u/x/y") is None and index.game_of("C:/x/y/z") is None

    def test_the_innermost_folder_counts(self) -> None:
        index = GameIndex(
            [GameFolder("/g/common", "Steam"), GameFolder("/g/common/a", "Steam", "A!")]
        )
        assert index.game_of("/g/common/a/b/c") == Game("Steam", "A!")


def test_linux_homes_are_searched(tmp_path: Path) -> None:
    real = tmp_path / ".local/share/Steam"
    (real / "steamapps").mkdir(parents=True)
    (tmp_path / ".steam").mkdir()
    (tmp_path / ".steam/steam").symlink_to(real)
    found = [folder for folder in here.on_linux(tmp_path) if folder.library == "Steam"]
    assert found == [GameFolder(str(real.resolve() / "steamapps/common"), "Steam")]


@pytest.mark.parametrize(
    "title", ["Proton 9.0 (Beta)", "SteamLinuxRuntime_sniper", "wallpaper_engine"]
)
def test_tools_are_no_games(title: str) -> None:
    assert is_tool(title) and not is_tool("ELDEN RING") and not is_tool("Portal 2")


@pytest.mark.parametrize(
    "name", ["UnityCrashHandler64.exe", "unins000.exe", "CrashReportClient.exe", "services.exe"]
)
def test_helpers_do_not_play(name: str) -> None:
    assert is_helper(name) and not is_helper("eldenring.exe") and not is_helper("Control.exe")


def test_programs_that_fill_screens() -> None:
    assert fills_screens("VLC.exe") and fills_screens("firefox") and not fills_screens("game")
