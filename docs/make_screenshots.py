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

ROOT = Path(__file__).resolve().parent.parent
SCREEN = (1296, 968)
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


def _take(arguments: argparse.Namespace) -> int:
    """Inside the X server: open the app, let it work, take the pictures."""
    sys.path.insert(0, str(ROOT))
    from PySide6.QtCore import QEventLoop
    from PySide6.QtWidgets import QApplication

    from app.core import settings
    from app.core.supervisor import Phase
    from app.ui import window
    from app.ui.application import Headrace

    settings.save(
        settings.Settings(
            model=arguments.model,
            device="sim",
            moe_cache_rate=0.37,
            port=0,
            theme=arguments.theme,
        )
    )
    app = QApplication(["Headrace"])
    headrace = Headrace(app)
    headrace.begin(hidden=False)
    main_window = headrace.window
    main_window.move(48, 44)

    def wait(condition: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition() and time.monotonic() < deadline:
            app.processEvents(QEventLoop.ProcessEventsFlag.AllEvents, 50)
            time.sleep(0.01)

    def pause(seconds: float) -> None:
        wait(lambda: False, seconds)

    def picture(name: str) -> None:
        path = arguments.out / f"screenshot-{name}.png"
        app.primaryScreen().grabWindow(0).save(str(path), "PNG", 0)
        print(f"{path}: {path.stat().st_size:,} bytes")
        if path.stat().st_size > MOST_BYTES:
            raise SystemExit(f"{path} exceeds {MOST_BYTES:,} bytes")

    session = main_window.chat.session
    try:
        wait(lambda: headrace.engine.view.phase is Phase.READY, 120)
        wait(lambda: headrace.tray.available, 10)
        for text in WARM_UP:
            session.ask(text)
            wait(lambda: not session.busy, 25)
            if session.busy:
                session.stop()
            session.new_chat()
            pause(2)
        session.ask(WARM_UP[0])
        pause(8)
        picture("dashboard")
        if session.busy:
            session.stop()
        session.new_chat()
        main_window.open_page(window.CHAT)
        for question in QUESTIONS:
            session.ask(question)
            wait(lambda: not session.busy, 200)
        pause(0.5)
        picture("chat")
    finally:
        headrace.engine.idle.connect(app.quit)
        headrace.quit()
        app.exec()
    return 0


if __name__ == "__main__":
    sys.exit(main())
