"""Take the README's screenshots: the real app and engine on an X server of their own.

    python docs/make_screenshots.py [--model PATH] [--theme dark|light] [--out docs]

Needs Xvfb, openbox, trayer and xsetroot (Debian: xvfb openbox trayer x11-xserver-utils). Shows the
device `sim` with room for 37 % of the experts, so that the expert channel has something to tell.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.core.settings import ThemeName

ROOT = Path(__file__).resolve().parent.parent
SCREEN = (1296, 1400)
PLACE = (48, 44)
WINDOWS = {"dashboard": (1200, 1312), "chat": (1200, 880)}
"""The dashboard's has room for all of it."""
MOST_BYTES = 300_000
WARM_UP = (
    "Tell me a story about a river and a mill.",
    "Why is the sky blue?",
    "Write a short poem about water.",
)
QUESTIONS = (
    "Give me three tips for staying healthy.",
    "Write a Python function that adds two numbers.",
)

_TRAY = {
    "edge": "top",
    "align": "right",
    "widthtype": "request",
    "height": "28",
    "transparent": "true",
    "alpha": "0",
    "tint": "0x16323a",
    "distancefrom": "right",
    "distance": "12",
}
_OPENBOX = """<openbox_config xmlns="http://openbox.org/3.4/rc">
<theme><name>Onyx</name></theme></openbox_config>"""


def main() -> int:
    arguments = _arguments()
    if arguments.inside:
        sys.path.insert(0, str(ROOT))
        return _take(arguments)
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="headrace-screenshots-") as home:
        try:
            display = _start_screen(processes)
            environment = os.environ | {"DISPLAY": display, "HEADRACE_HOME": home}
            environment.pop("QT_QPA_PLATFORM", None)
            environment.pop("WAYLAND_DISPLAY", None)
            look = Path(home, "openbox.xml")
            look.write_text(_OPENBOX)
            tray = [word for name, value in _TRAY.items() for word in (f"--{name}", value)]
            for command in (["openbox", "--config-file", str(look)], ["trayer", *tray]):
                processes.append(subprocess.Popen(command, env=environment))
            subprocess.run(["xsetroot", "-solid", "#16323a"], env=environment, check=True)
            time.sleep(1.0)  # both register with the X server; neither says when
            inside = [sys.executable, __file__, "--inside", *sys.argv[1:]]
            return subprocess.run(inside, env=environment, cwd=ROOT, check=False).returncode
        finally:
            for process in reversed(processes):
                process.terminate()
                process.wait()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--theme", choices=["dark", "light"], default="dark")
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _start_screen(processes: list[subprocess.Popen[bytes]]) -> str:
    """An X server on a free display; it tells which through a pipe."""
    read, write = os.pipe()
    size = f"{SCREEN[0]}x{SCREEN[1]}x24"
    processes.append(
        subprocess.Popen(
            ["Xvfb", "-displayfd", str(write), "-screen", "0", size, "-noreset"],
            pass_fds=[write],
            stderr=subprocess.DEVNULL,
        )
    )
    os.close(write)
    with os.fdopen(read) as answer:
        return f":{answer.readline().strip()}"


class _Camera:
    """The open app, driven from outside its event loop, and what it takes pictures with."""

    def __init__(self, model: str, theme: ThemeName, out: Path) -> None:
        from PySide6.QtGui import QCursor
        from PySide6.QtWidgets import QApplication

        from app.core import settings
        from app.ui.application import Headrace

        wanted = settings.Settings(
            model=model, device="sim", moe_cache_rate=0.37, port=0, theme=theme
        )
        settings.save(wanted)
        self._out = out
        self._app = QApplication(["Headrace"])
        self.headrace = Headrace(self._app)
        self.headrace.begin(hidden=False)
        self.headrace.window.move(*PLACE)
        QCursor.setPos(0, 0)  # what it is on tells of itself

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Whether the condition came true in time."""
        from PySide6.QtCore import QEventLoop

        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            self._app.processEvents(QEventLoop.ProcessEventsFlag.AllEvents, 50)
            time.sleep(0.01)
        return True

    def pause(self, seconds: float) -> None:
        self.wait(lambda: False, seconds)

    def ask(self, text: str, seconds: float) -> None:
        """Ask and wait for the answer; what is not written by then is cut off."""
        session = self.headrace.window.chat.session
        session.ask(text)
        if not self.wait(lambda: not session.busy, seconds):
            session.stop()

    def picture(self, name: str) -> None:
        """Of the screen down to below the window, which is given its size first."""
        window = self.headrace.window
        window.resize(*WINDOWS[name])
        self.pause(1)
        path = self._out / f"screenshot-{name}.png"
        height = window.frameGeometry().bottom() + PLACE[1]
        shown = self._app.primaryScreen().grabWindow(0, 0, 0, SCREEN[0], height)
        shown.save(str(path), "PNG", 0)
        print(f"{path}: {path.stat().st_size:,} bytes")
        if path.stat().st_size > MOST_BYTES:
            raise SystemExit(f"{path} exceeds {MOST_BYTES:,} bytes")

    def close(self) -> None:
        self.headrace.engine.idle.connect(self._app.quit)
        self.headrace.quit()
        self._app.exec()


def _take(arguments: argparse.Namespace) -> int:
    """Inside the X server: open the app, let it work, take the pictures."""
    from app.core.supervisor import Phase
    from app.ui import window

    camera = _Camera(arguments.model, arguments.theme, arguments.out)
    headrace = camera.headrace
    session = headrace.window.chat.session
    try:
        if not camera.wait(lambda: headrace.engine.view.phase is Phase.READY, 120):
            raise SystemExit("the engine is not ready after two minutes")
        camera.wait(lambda: headrace.tray.available, 10)
        for text in WARM_UP:
            camera.ask(text, 25)
            session.new_chat()
            camera.pause(2)
        session.ask(WARM_UP[0])
        camera.pause(2.5)  # the answer is still being written
        camera.picture("dashboard")
        session.new_chat()
        headrace.window.open_page(window.CHAT)
        for question in QUESTIONS:
            camera.ask(question, 200)
        camera.pause(0.5)
        camera.picture("chat")
    finally:
        camera.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
