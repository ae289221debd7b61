"""What closing the window means, and what a second launch does."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication, QMessageBox
from pytestqt.qtbot import QtBot

from app import cli
from app.core import settings
from app.ui import tray
from app.ui.close_dialog import CloseDialog
from app.ui.single_instance import Launch, SingleInstance, settle
from tests.app.conftest import PATIENCE_MS, Opener


class Closer:
    """Answers the close dialog, and counts how often it came."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def answer(self, choice: str) -> None:
        def press() -> None:
            dialog = QApplication.activeModalWidget()
            if not isinstance(dialog, CloseDialog):
                return
            self.seen.append(dialog.words.text())
            if choice == "escape":
                dialog.reject()
            elif choice == "cancel":
                dialog.cancel.click()
            else:
                (dialog.keep if choice == "hide" else dialog.quit).click()

        QTimer.singleShot(50, press)


@pytest.fixture
def with_tray(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    def choose(there: bool) -> None:
        monkeypatch.setattr(tray, "tray_available", lambda: there)

    choose(True)
    return choose


class TestClosing:
    def test_asks_once_and_remembers(
        self, open_app: Opener, with_tray: object, qtbot: QtBot
    ) -> None:
        headrace = open_app()
        closer = Closer()
        closer.answer("hide")
        headrace.window.close()
        assert not headrace.window.isVisible()
        assert settings.load().on_close == "hide"
        headrace.tray.open_asked.emit()
        assert headrace.window.isVisible()
        closer.answer("hide")
        headrace.window.close()
        qtbot.wait(100)
        assert len(closer.seen) == 1 and "tray" in closer.seen[0]
        assert not headrace.window.isVisible()

    def test_escape_keeps_the_window_and_asks_again(
        self, open_app: Opener, with_tray: object
    ) -> None:
        headrace = open_app()
        closer = Closer()
        for choice in ("escape", "cancel"):
            closer.answer(choice)
            headrace.window.close()
        assert len(closer.seen) == 2
        assert headrace.window.isVisible()
        assert settings.load().on_close == "ask"

    def test_quit_quits(self, open_app: Opener, with_tray: object, qtbot: QtBot) -> None:
        headrace = open_app()
        Closer().answer("quit")
        with qtbot.waitSignal(headrace.engine.idle, timeout=PATIENCE_MS):
            headrace.window.close()
        assert settings.load().on_close == "quit"

    def test_without_a_tray_nobody_is_stranded(
        self, open_app: Opener, with_tray: Callable[[bool], None]
    ) -> None:
        with_tray(False)
        headrace = open_app()
        closer = Closer()
        closer.answer("hide")
        headrace.window.close()
        assert "no tray" in closer.seen[0]
        assert headrace.window.isVisible() and headrace.window.isMinimized()
        headrace.window.raise_up()
        assert not headrace.window.isMinimized()

    def test_a_tray_that_goes_gives_the_window_back(
        self, open_app: Opener, with_tray: Callable[[bool], None]
    ) -> None:
        headrace = open_app(on_close="hide")
        headrace.window.close()
        assert not headrace.window.isVisible()
        with_tray(False)
        headrace.tray.look()
        assert headrace.window.isVisible()

    def test_hidden_start(self, open_app: Opener, with_tray: Callable[[bool], None]) -> None:
        assert not open_app(hidden=True).window.isVisible()
        with_tray(False)
        assert open_app(hidden=True).window.isMinimized()


class TestSingleInstance:
    def test_a_second_launch_raises_the_first(self, qtbot: QtBot) -> None:
        first = SingleInstance()
        assert first.claim()
        second = subprocess.Popen(
            [sys.executable, "-m", "app.cli"], stdout=subprocess.PIPE, text=True
        )
        with qtbot.waitSignal(first.raised, timeout=PATIENCE_MS):
            pass
        qtbot.waitUntil(lambda: second.poll() is not None, timeout=PATIENCE_MS)
        assert second.returncode == 0
        assert "runs already" in second.communicate()[0]
        first.release()

    def test_another_home_is_another_instance(
        self, qapp: QApplication, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        first = SingleInstance()
        assert first.claim()
        assert not SingleInstance().claim()
        monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "other"))
        other = SingleInstance()
        assert other.claim()
        other.release()
        first.release()

    def test_a_killed_instance_leaves_room(self, qapp: QApplication) -> None:
        code = (
            "from PySide6.QtCore import QCoreApplication\n"
            "from app.ui.single_instance import SingleInstance\n"
            "app = QCoreApplication([]); one = SingleInstance(); print(one.claim(), flush=True)\n"
            "app.exec()"
        )
        command = [sys.executable, "-c", code]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
            assert other.stdout is not None and other.stdout.readline() == b"True\n"
            assert not SingleInstance().claim()
            other.kill()
        first = SingleInstance()
        assert first.claim()
        first.release()

    def test_an_instance_that_ends_is_waited_for(self, qapp: QApplication) -> None:
        first = SingleInstance()
        assert first.claim()
        first.stop_listening()  # it is about to end
        second = SingleInstance()
        assert settle(second, patience_s=0) is Launch.UNANSWERED
        first.release()
        assert settle(second, patience_s=0) is Launch.FIRST
        second.release()


def test_a_home_that_cannot_be_written_is_told_with_the_way_out(
    qapp: QApplication,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("")
    home = tmp_path / "file" / "home"
    monkeypatch.setenv("HEADRACE_HOME", str(home))
    words: list[str] = []

    def read_and_close() -> None:
        box = qapp.activeModalWidget()
        assert isinstance(box, QMessageBox)
        words.append(box.text())
        box.close()

    QTimer.singleShot(200, read_and_close)
    assert cli.main([]) == 1
    assert str(home) in words[0] and "HEADRACE_HOME" in words[0]
    assert capsys.readouterr().err == f"{words[0]}\n"
