"""Programs, GameMode and the window in front: asked of real processes, a real bus, a real X."""

import ctypes
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.core.governor.evidence import Engine, Evidence
from app.core.governor.games.folders import GameFolder
from app.core.governor.policy import Policy
from app.core.governor.probes import windows_vram
from app.core.governor.probes.front import Front, NoFrontProbe
from app.core.governor.probes.game_mode import GameModeProbe
from app.core.governor.probes.probe import NotAvailable
from app.core.governor.probes.processes import REFRESH_S, YOUNG_S, ProcessProbe
from app.core.governor.probes.windows_front import WindowsFrontProbe, covers
from app.core.governor.probes.x11_front import X11FrontProbe
from app.core.governor.sampler import Sampler, ThreadSource
from tests.app.conftest import wait_until
from tests.project.checkout import ROOT

linux = pytest.mark.skipif(sys.platform != "linux", reason="tells of Linux")
WAIT = "import time; time.sleep(600)"

Starter = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Starter]:
    started: list[subprocess.Popen[bytes]] = []

    def starter(command: list[str], **options: object) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(command, **options)  # type: ignore[call-overload]
        started.append(process)
        return process

    yield starter
    for process in started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


class TestProcesses:
    def probe(self, common: Path, ahead: float = 0.0) -> ProcessProbe:
        folders = [GameFolder(str(common), "Steam")]
        return ProcessProbe(lambda: folders, lambda: time.time() + ahead)

    @linux
    def test_a_game_is_known_by_its_folder(self, tmp_path: Path, start: Starter) -> None:
        program = tmp_path / "common" / "Portal 2" / "portal2_linux"
        program.parent.mkdir(parents=True)
        shutil.copy(shutil.which("sleep") or "", program)
        begun = time.time()
        process = start([str(program), "600"])
        (found,) = self.probe(tmp_path / "common").read((), lambda _: False)
        assert (found.pid, found.name, found.game) == (process.pid, "portal2_linux", "Portal 2")
        assert found.library == "Steam" and found.path == str(program)
        assert abs(found.started - begun) < 60 and found.age_s < 60

    @linux
    def test_steam_s_wrapper_is_the_game_that_it_runs(self, tmp_path: Path, start: Starter) -> None:
        common = tmp_path / "common"
        launcher = common / "SteamLinuxRuntime_sniper" / "_v2-entry-point"
        game = common / "ELDEN RING" / "Game" / "eldenring.exe"
        arguments = ["SteamLaunch", "AppId=1245620", "--", str(launcher), "--", str(game)]
        process = start([sys.executable, "-c", WAIT, *arguments])
        (found,) = self.probe(common).read((), lambda _: False)
        assert (found.pid, found.game) == (process.pid, "ELDEN RING")

    @linux
    def test_under_proton_the_first_argument_is_the_game(
        self, tmp_path: Path, start: Starter
    ) -> None:
        common = tmp_path / "common"
        loader = common / "Proton 9.0" / "files" / "bin" / "wine64-preloader"
        loader.parent.mkdir(parents=True)
        shutil.copy(shutil.which("sleep") or "", loader)
        name = "Z:" + str(common / "ELDEN RING" / "Game" / "eldenring.exe").replace("/", "\\")
        start([name, "600"], executable=str(loader))
        start([str(loader), "600"])  # Wine's own services
        (found,) = self.probe(common).read((), lambda _: False)
        assert (found.game, found.name) == ("ELDEN RING", "eldenring.exe")

    @linux
    def test_a_file_of_a_game_in_an_editor_is_none(self, tmp_path: Path, start: Starter) -> None:
        start([sys.executable, "-c", WAIT, str(tmp_path / "common" / "Game" / "settings.ini")])
        assert self.probe(tmp_path / "common").read((), lambda _: False) == []

    @linux
    def test_a_process_that_becomes_a_game_is_seen(self, tmp_path: Path, start: Starter) -> None:
        """A child runs its parent's program first."""
        program = tmp_path / "common" / "Game" / "game"
        program.parent.mkdir(parents=True)
        shutil.copy(shutil.which("sleep") or "", program)
        go = tmp_path / "go"
        script = f"while [ ! -e '{go}' ]; do sleep 0.05; done; exec '{program}' 600"
        process = start(["/bin/sh", "-c", script])
        probe = self.probe(tmp_path / "common")
        assert probe.read((), lambda _: False) == []
        go.touch()
        wait_until(lambda: [one.pid for one in probe.read((), lambda _: False)] == [process.pid])

    @linux
    def test_what_is_pointed_at_or_listed_is_told_of(self, tmp_path: Path, start: Starter) -> None:
        process = start([sys.executable, "-c", WAIT])
        probe = self.probe(tmp_path)
        (found,) = probe.read({process.pid}, lambda _: False)
        assert found.pid == process.pid and not found.game
        assert process.pid in [one.pid for one in probe.read((), lambda _: True)]
        process.kill()
        process.wait()
        assert probe.read({process.pid}, lambda _: False) == []

    def test_libraries_are_read_again_after_a_while(self) -> None:
        now, reads = [1e9], []

        def folders() -> list[GameFolder]:
            reads.append(now[0])
            return []

        probe = ProcessProbe(folders, lambda: now[0])
        for seconds in (0, 1, REFRESH_S, 1, -3600):
            now[0] += seconds
            probe.read((), lambda _: False)
        assert len(reads) == 3 and YOUNG_S < REFRESH_S


class TestGameMode:
    @pytest.fixture
    def bus(self, tmp_path: Path, start: Starter, monkeypatch: pytest.MonkeyPatch) -> str:
        daemon = shutil.which("dbus-daemon")
        if daemon is None:
            pytest.skip("needs dbus-daemon")
        address = f"unix:path={tmp_path / 'bus'}"
        command = [daemon, "--session", "--nofork", "--print-address", f"--address={address}"]
        process = start(command, stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline()
        monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", address)
        return address

    def test_games_that_have_registered(self, bus: str, start: Starter) -> None:
        probe = GameModeProbe()
        assert probe.read() == frozenset()  # GameMode does not run
        service = Path(__file__).with_name("game_mode_service.py")
        process = start([sys.executable, str(service), "4711", "42"], stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        assert probe.read() == {4711, 42}
        process.kill()
        process.wait()
        wait_until(lambda: probe.read() == frozenset())
        probe.rest()
        probe.rest()

    def test_a_bus_that_goes_is_told_and_found_again(
        self, bus: str, start: Starter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        probe = GameModeProbe()
        assert probe.read() == frozenset()
        monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nowhere/at/all")
        probe.rest()
        with pytest.raises(NotAvailable, match="does not answer"):
            probe.read()
        monkeypatch.delenv("DBUS_SESSION_BUS_ADDRESS")
        with pytest.raises(NotAvailable, match="has no D-Bus"):
            probe.read()
        monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", bus)
        assert probe.read() == frozenset()
        probe.rest()


SHOW = """
import ctypes, sys
from app.core.governor.probes import x11_front
probe = x11_front.X11FrontProbe()
probe._connect()
xcb, connection = probe._xcb, probe._connection
(root,) = probe._roots()
def put(name, kind, *items):
    data = (ctypes.c_uint32 * len(items))(*items)
    xcb.xcb_change_property(ctypes.c_void_p(connection), 0, root, probe._atom(name), kind, 32,
                            len(items), data)
put("_NET_WM_PID", 6, 4711)
put("_NET_WM_STATE", 4, *[probe._atom("_NET_WM_STATE_" + word) for word in sys.argv[2:]])
put("_NET_ACTIVE_WINDOW", 33, root if sys.argv[1] == "root" else int(sys.argv[1]))
xcb.xcb_flush(ctypes.c_void_p(connection))
probe._atom("until everything has arrived")
"""


@linux
class TestX11:
    @pytest.fixture
    def server(self, start: Starter, monkeypatch: pytest.MonkeyPatch) -> "subprocess.Popen[bytes]":
        xvfb = shutil.which("Xvfb")
        if xvfb is None:
            pytest.skip("needs Xvfb")
        readable, writable = os.pipe()
        options = ["-displayfd", str(writable), "-nolisten", "tcp", "-screen", "0", "320x240x24"]
        process = start(
            [xvfb, *options, "-noreset"], pass_fds=(writable,), stderr=subprocess.DEVNULL
        )
        os.close(writable)
        with os.fdopen(readable, "rb") as display:
            number = display.readline().decode().strip()
        monkeypatch.setenv("DISPLAY", f":{number}")
        monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
        return process

    def show(self, window: str, *states: str) -> None:
        """Publish what a window manager would; the root plays the active window, too."""
        command = [sys.executable, "-c", SHOW, window, *states]
        subprocess.run(command, check=True, cwd=ROOT, timeout=100)

    def test_the_active_window(self, server: object, monkeypatch: pytest.MonkeyPatch) -> None:
        probe = X11FrontProbe()
        assert probe.read() is None  # no window manager publishes anything
        self.show("root", "ABOVE", "FULLSCREEN")
        assert probe.read() == Front(4711, fullscreen=True)
        self.show("root", "MAXIMIZED_VERT")
        assert probe.read() == Front(4711, fullscreen=False)
        self.show("root")
        assert probe.read() == Front(4711, fullscreen=False)
        self.show("123456789")  # a window that is gone
        assert probe.read() is None
        self.show("0")
        assert probe.read() is None
        monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
        with pytest.raises(NotAvailable, match="Wayland"):
            probe.read()
        probe.rest()
        probe.rest()

    def test_a_server_that_goes_is_told(self, server: "subprocess.Popen[bytes]") -> None:
        probe = X11FrontProbe()
        assert probe.read() is None
        server.kill()
        server.wait()
        with pytest.raises(NotAvailable, match="closed the connection"):
            probe.read()
        with pytest.raises(NotAvailable, match="does not answer"):
            probe.read()

    def test_without_a_display(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("DISPLAY", raising=False)
        monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
        with pytest.raises(NotAvailable, match="no X display"):
            X11FrontProbe().read()
        monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
        with pytest.raises(NotAvailable, match="Wayland tells nobody"):
            X11FrontProbe().read()


class TestWindows:
    """What can be checked anywhere; the calls themselves run on Windows only."""

    def test_vram_of_the_engine_s_gpu_by_pid(self) -> None:
        counters = [
            ("pid_42_luid_0x00000000_0x0000C7A9_phys_0", 5000),
            ("pid_42_luid_0x00000000_0x0000c7a9_phys_1", 50),
            ("pid_7_luid_0x00000000_0x0000C7A9_phys_0", 300),
            ("pid_7_luid_0x00000000_0x0000FFFF_phys_0", 9),
            ("_Total", 1),
        ]
        assert windows_vram.vram_by_pid(counters, 42) == {42: 5050, 7: 300}
        assert windows_vram.vram_by_pid(counters, 99) == {42: 5050, 7: 309}
        assert windows_vram.vram_by_pid([], 42) == {}

    def test_items_lie_as_pdh_writes_them(self) -> None:
        """PDH_FMT_COUNTERVALUE_ITEM_W on 64 bits: a pointer, a status, a value at offset 16."""
        item = windows_vram.CounterItem
        assert (ctypes.sizeof(item), item.status.offset, item.value.offset) == (24, 8, 16)

    def test_what_covers_a_screen(self) -> None:
        screen = (0, 0, 2560, 1440)
        borderless, framed = 0x96000000, 0x14CF0000
        assert covers(screen, screen, borderless)
        assert covers((-8, -8, 2568, 1448), screen, borderless)
        assert not covers((-8, -8, 2568, 1448), screen, framed)
        assert not covers((0, 0, 2560, 1400), screen, borderless)
        second = (2560, 0, 4480, 1080)
        assert covers(second, second, borderless) and not covers(screen, second, borderless)

    @pytest.mark.skipif(sys.platform == "win32", reason="tells of other systems")
    def test_elsewhere_they_see_nothing(self) -> None:
        assert WindowsFrontProbe().read() is None
        assert windows_vram.WindowsVramProbe().read(1) == {}


def test_a_system_without_a_probe_for_windows_says_so() -> None:
    with pytest.raises(NotAvailable, match=sys.platform):
        NoFrontProbe().read()


class TestThread:
    def look(self, source: ThreadSource) -> Evidence:
        seen: list[Evidence] = []
        source.begin(5.0, Engine(identity="one", held_bytes=1), Policy())
        wait_until(lambda: bool(seen.append(found) if (found := source.result()) else seen))
        assert source.result() is None
        return seen[0]

    def test_all_probes_of_this_machine_look_or_say_why_not(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("DISPLAY", "WAYLAND_DISPLAY", "DBUS_SESSION_BUS_ADDRESS"):
            monkeypatch.delenv(name, raising=False)
        source = ThreadSource(Sampler())
        evidence = self.look(source)
        assert evidence.at == 5.0 and evidence.engine is not None
        if sys.platform == "linux":
            assert {"GameMode", "Window in front"} <= {one.probe for one in evidence.missing}
        assert all(one.why.endswith(".") for one in evidence.missing)
        assert not evidence.programs or all(one.pid != os.getpid() for one in evidence.programs)
        source.rest()
        source.rest()

    def test_a_probe_with_a_fault_stops_nothing(self, caplog: pytest.LogCaptureFixture) -> None:
        sampler = Sampler(processes=ProcessProbe(lambda: 1 // 0 or []))
        source = ThreadSource(sampler)
        evidence = self.look(source)
        assert evidence.gpu is None and "the log has more" in evidence.missing[0].why
        assert "ZeroDivisionError" in caplog.text
        self.look(source)
        source.rest()
