"""Fixtures of the app's tests: no display, a home folder for each test, nothing left behind."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ["QT_QPA_PLATFORM"] = "offscreen"

import psutil
import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

import engine
from app.core import launch, settings
from app.core.settings import Settings
from app.core.supervisor import Phase
from app.ui.application import Headrace

Opener = Callable[..., Headrace]

PATIENCE_S = 60.0
"""Nothing takes so long, on a machine that is busy with other things too: a wait for what comes."""
PATIENCE_MS = round(1000 * PATIENCE_S)
STAND_IN = Path(__file__).with_name("stand_in_server.py")
_HARMLESS = (
    "OpenType support missing for",  # a random model writes in every script there is
    # What the platform plugin `offscreen` says of itself:
    "This plugin does not support propagateSizeHints()",
    "This plugin does not support raise()",
    "QObject::connect: No such signal QPlatformNativeInterface::systemTrayWindowChanged(QScreen*)",
)


@pytest.fixture(autouse=True, scope="module")
def no_garbage_of_qt() -> Iterator[None]:
    """Python collects what is left of windows here, not in the midst of another module."""
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HEADRACE_HOME", str(folder))
    return folder


@pytest.fixture(autouse=True)
def no_qt_warnings(qtlog: object) -> Iterator[None]:
    """Qt says on its log what it cannot raise: each such line is a fault."""
    yield
    lines = [record.message for record in qtlog.records]  # type: ignore[attr-defined]
    assert not [line for line in lines if not line.startswith(_HARMLESS)]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No process and no thread outlives its test."""
    threads = set(threading.enumerate())
    processes = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    deadline = time.monotonic() + PATIENCE_S
    while True:
        left = [
            child
            for child in psutil.Process().children(recursive=True)
            if child.pid not in processes and alive(child.pid)
        ]
        started = set(threading.enumerate()) - threads
        if not left and not started:
            return
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    for child in left:
        child.kill()
    pytest.fail(f"left behind: processes {left}, threads {started}")


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the app start the stand-in server instead of the engine; call it to choose its ways."""

    def command(_: Settings, owner_pid: int) -> list[str]:
        return [sys.executable, str(STAND_IN), "serve", "--owner-pid", str(owner_pid)]

    monkeypatch.setattr(launch, "serve_command", command)
    monkeypatch.setenv("STAND_IN_VERSION", engine.__version__)

    def choose(mode: str = "", **environment: str) -> None:
        monkeypatch.setenv("STAND_IN", mode)
        for name, value in environment.items():
            monkeypatch.setenv(f"STAND_IN_{name.upper()}", value)

    choose()
    return choose


@pytest.fixture
def open_app(qapp: QApplication, qtbot: QtBot) -> Iterator[Callable[..., Headrace]]:
    """Open the whole app with these settings; it is quit at the end, its engine with it."""
    opened: list[Headrace] = []

    def opener(*, hidden: bool = False, **changes: object) -> Headrace:
        changes.setdefault("start_engine_at_launch", False)
        settings.save(Settings(**changes))  # type: ignore[arg-type]
        headrace = Headrace(qapp)
        opened.append(headrace)
        headrace.begin(hidden=hidden)
        return headrace

    yield opener
    for headrace in opened:
        close_app(headrace, qtbot)


def close_app(headrace: Headrace, qtbot: QtBot) -> None:
    headrace.quit()
    qtbot.waitUntil(lambda: not headrace.engine.supervisor.running, timeout=PATIENCE_MS)
    headrace.close()


def ready(headrace: Headrace, qtbot: QtBot) -> None:
    """Wait for an engine that answers and whose figures have come."""
    engine = headrace.engine
    qtbot.waitUntil(lambda: engine.view.phase is Phase.READY, timeout=PATIENCE_MS)
    qtbot.waitUntil(
        lambda: engine.stats.state == "ready" and engine.stats.model != "", timeout=PATIENCE_MS
    )


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended but was not waited for does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    """For things outside this process's event loop."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)
