"""The window, its pages, and what closing means; with a stand-in where a server must misbehave."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, QPointF, Qt, QTimer
from PySide6.QtGui import QGuiApplication, QWheelEvent
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.core import launch, settings
from app.core.conversation import MessageState
from app.core.settings import Settings
from app.core.supervisor import Phase
from app.ui import theme, tray, window
from app.ui.application import Headrace
from app.ui.close_dialog import CloseDialog
from app.ui.single_instance import Launch, SingleInstance, settle
from app.ui.widgets.code_block import CodeBlock
from app.ui.widgets.message_view import AssistantMessage
from engine.messages import Stats

Opener = Callable[..., Headrace]


def ready(headrace: Headrace, qtbot: QtBot) -> None:
    qtbot.waitUntil(lambda: headrace.engine.view.phase is Phase.READY, timeout=10_000)
    qtbot.waitUntil(lambda: headrace.engine.stats.model != "", timeout=5_000)


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
        for _ in range(2):
            closer.answer("escape")
            headrace.window.close()
        assert len(closer.seen) == 2
        assert headrace.window.isVisible()
        assert settings.load().on_close == "ask"

    def test_quit_quits(self, open_app: Opener, with_tray: object, qtbot: QtBot) -> None:
        headrace = open_app()
        Closer().answer("quit")
        with qtbot.waitSignal(headrace.engine.idle):
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
        second = subprocess.Popen([sys.executable, "-m", "app.cli"])
        with qtbot.waitSignal(first.raised, timeout=15_000):
            pass
        qtbot.waitUntil(lambda: second.poll() is not None, timeout=10_000)
        assert second.returncode == 0
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


class TestEngine:
    def test_start_show_stop(self, open_app: Opener, stand_in: Callable[..., None], qtbot: QtBot):
        stand_in(stats='{"decode_tokens_per_s": 41.5, "device": "sim", "expert_slots": 4}')
        headrace = open_app(start_engine_at_launch=True)
        ready(headrace, qtbot)
        header = headrace.window.header
        assert header.pill.text == "Ready"
        assert header.model.text() == "stand-in"
        header.chip.click()
        assert QGuiApplication.clipboard().text() == f"{headrace.engine.endpoint}/v1"
        headrace.window.dashboard.toggle.click()
        qtbot.waitUntil(lambda: headrace.engine.view.phase is Phase.STOPPED, timeout=10_000)
        assert header.chip.isHidden()
        assert headrace.window.dashboard.toggle.text() == "Start engine"

    def test_quick_crashes_are_told_and_given_up(
        self,
        open_app: Opener,
        stand_in: Callable[..., None],
        qtbot: QtBot,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("app.core.supervisor.MAX_DELAY_S", 0.05)
        stand_in("fail-start")
        headrace = open_app(start_engine_at_launch=True)
        qtbot.waitUntil(lambda: headrace.engine.view.phase is Phase.GAVE_UP, timeout=20_000)
        banner = headrace.window.dashboard.banner
        assert "code 3" in banner.text and "model folder is empty" in banner.text
        stand_in()
        headrace.window.dashboard.start_asked.emit()
        ready(headrace, qtbot)

    def test_a_model_that_fails(
        self, open_app: Opener, stand_in: Callable[..., None], qtbot: QtBot
    ) -> None:
        stand_in("failed-model")
        headrace = open_app(start_engine_at_launch=True)
        qtbot.waitUntil(lambda: headrace.engine.view.phase is Phase.FAILED, timeout=10_000)
        assert headrace.window.dashboard.banner.text == "shard 2 is missing"

    def test_a_deaf_server_is_killed(
        self,
        open_app: Opener,
        stand_in: Callable[..., None],
        qtbot: QtBot,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("app.core.supervisor.STOP_S", 0.5)
        stand_in("deaf")
        headrace = open_app(start_engine_at_launch=True)
        ready(headrace, qtbot)
        headrace.engine.stop()
        qtbot.waitUntil(lambda: headrace.engine.view.phase is Phase.STOPPED, timeout=10_000)

    def test_apply_restarts_with_the_new_settings(
        self, open_app: Opener, stand_in: Callable[..., None], qtbot: QtBot
    ) -> None:
        headrace = open_app(start_engine_at_launch=True)
        ready(headrace, qtbot)
        before = headrace.engine.server_pid
        page = headrace.window.settings
        assert page.apply.isHidden() or not page.apply.isEnabled()
        page.cache_rate.setValue(37)
        assert page.apply.isEnabled() and page.apply.text() == "Apply and restart engine"
        page.apply.click()
        qtbot.waitUntil(
            lambda: (
                headrace.engine.server_pid not in (0, before)
                and headrace.engine.view.phase is Phase.READY
            ),
            timeout=10_000,
        )
        assert settings.load().moe_cache_rate == 0.37

    def test_the_log_follows(
        self, open_app: Opener, stand_in: Callable[..., None], qtbot: QtBot
    ) -> None:
        headrace = open_app(start_engine_at_launch=True)
        ready(headrace, qtbot)
        logs = headrace.window.logs
        logs.refresh()
        assert "Headrace listens on http" in logs.view.toPlainText()
        with launch.server_log().open("a") as more:
            more.write("a line about experts\n")
        logs.filter.setText("EXPERTS")
        logs.refresh()
        assert logs.view.toPlainText() == "a line about experts"


class TestSettingsPage:
    def test_wrong_values_are_named_and_not_applied(self, open_app: Opener) -> None:
        page = open_app().window.settings
        page.model.setText("/nowhere/at/all")
        assert page.problem("model") == "Nothing exists at /nowhere/at/all."
        assert not page.apply.isEnabled()
        page.revert.click()
        assert page.model.text() == "demo"

    def test_scrolling_changes_nothing(self, open_app: Opener) -> None:
        main = open_app().window
        main.open_page(window.SETTINGS)
        page = main.settings
        for editor in (page.device, page.cache_rate, page.context):
            before = page.draft
            point = QPointF(editor.rect().center())
            wheel = QWheelEvent(
                point,
                editor.mapToGlobal(point),
                QPoint(),
                QPoint(0, -240),
                Qt.MouseButton.NoButton,
                Qt.KeyboardModifier.NoModifier,
                Qt.ScrollPhase.NoScrollPhase,
                False,
            )
            QApplication.sendEvent(editor, wheel)
            assert page.draft == before
            assert not wheel.isAccepted()

    def test_theme_changes_at_once(self, open_app: Opener) -> None:
        page = open_app(theme="dark").window.settings
        assert theme.active() is theme.DARK
        page.theme.setCurrentIndex(page.theme.findData("light"))
        assert theme.active() is theme.LIGHT
        assert settings.load().theme == "light"

    def test_pages_by_keyboard(self, open_app: Opener, qtbot: QtBot) -> None:
        main = open_app().window
        with qtbot.waitActive(main):
            main.activateWindow()
        for number, (_, name) in enumerate(window.PAGES, start=1):
            qtbot.keyClick(main, str(number), Qt.KeyboardModifier.ControlModifier)
            assert main.header.title.text() == name


class TestChat:
    @pytest.fixture
    def chat(self, open_app: Opener, stand_in: Callable[..., None], qtbot: QtBot) -> Headrace:
        headrace = open_app(start_engine_at_launch=True)
        ready(headrace, qtbot)
        headrace.window.open_page(window.CHAT)
        return headrace

    def type_and_send(self, headrace: Headrace, qtbot: QtBot, text: str) -> None:
        editor = headrace.window.chat.composer.editor
        qtbot.keyClicks(editor, text)
        qtbot.keyClick(editor, Qt.Key.Key_Return)

    def done(self, headrace: Headrace, qtbot: QtBot) -> AssistantMessage:
        page = headrace.window.chat
        qtbot.waitUntil(lambda: not page.session.busy, timeout=10_000)
        view = page.views[-1]
        assert isinstance(view, AssistantMessage)
        return view

    def test_shift_enter_starts_a_line(self, chat: Headrace, qtbot: QtBot) -> None:
        editor = chat.window.chat.composer.editor
        qtbot.keyClicks(editor, "a")
        qtbot.keyClick(editor, Qt.Key.Key_Return, Qt.KeyboardModifier.ShiftModifier)
        qtbot.keyClicks(editor, "b")
        assert editor.toPlainText() == "a\nb"
        assert not chat.window.chat.views

    def test_a_refusal_is_shown_with_a_way_to_try_again(self, chat: Headrace, qtbot: QtBot) -> None:
        self.type_and_send(chat, qtbot, "refuse")
        view = self.done(chat, qtbot)
        assert view.error == "the prompt is too long Shorten it."
        view.retry.emit()
        assert self.done(chat, qtbot).error
        assert len(chat.window.chat.views) == 2

    def test_an_answer_that_breaks_off(
        self, open_app: Opener, stand_in: Callable[..., None], qtbot: QtBot
    ) -> None:
        stand_in("mid-error")
        headrace = open_app(start_engine_at_launch=True)
        ready(headrace, qtbot)
        self.type_and_send(headrace, qtbot, "hi")
        view = self.done(headrace, qtbot)
        assert view.message.text == "Hello there"
        assert view.error == "the runtime died"

    def test_stop_keeps_what_came(
        self, open_app: Opener, stand_in: Callable[..., None], qtbot: QtBot
    ) -> None:
        stand_in(reply='["x "' + ', "x "' * 999 + "]", pause="0.02")
        headrace = open_app(start_engine_at_launch=True)
        ready(headrace, qtbot)
        self.type_and_send(headrace, qtbot, "hi")
        page = headrace.window.chat
        qtbot.waitUntil(lambda: len(page.session.conversation.messages[-1].text) > 10)
        assert page.composer.send.accessibleName() == "Stop"
        page.composer.send.click()
        view = self.done(headrace, qtbot)
        assert view.message.state is MessageState.STOPPED
        assert view.message.text.startswith("x x")
        length = len(view.message.text)
        qtbot.wait(100)
        assert len(view.message.text) == length

    def test_code_and_scrolling(
        self, open_app: Opener, stand_in: Callable[..., None], qtbot: QtBot
    ) -> None:
        stand_in(reply='["```py\\nx = 1\\n", "```\\n"' + ', "line\\n\\n"' * 150 + "]", pause="0.01")
        headrace = open_app(start_engine_at_launch=True)
        ready(headrace, qtbot)
        headrace.window.open_page(window.CHAT)
        self.type_and_send(headrace, qtbot, "hi")
        page = headrace.window.chat
        bar = page.scroller.verticalScrollBar()
        qtbot.waitUntil(lambda: bar.maximum() > 100, timeout=5_000)
        qtbot.waitUntil(lambda: bar.value() == bar.maximum())
        bar.setValue(10)  # a reader who looks at the beginning is left there
        view = self.done(headrace, qtbot)
        qtbot.wait(50)
        assert bar.value() == 10
        code = view.views[0]
        assert isinstance(code, CodeBlock) and code.text == "x = 1"
        view._copy.click()
        assert QGuiApplication.clipboard().text().startswith("```py")
        page.new_button.click()
        assert not page.views and not page.session.conversation.messages

    def test_a_message_waits_for_the_model(
        self, open_app: Opener, stand_in: Callable[..., None], qtbot: QtBot
    ) -> None:
        headrace = open_app(start_engine_at_launch=True)
        assert headrace.engine.view.phase is Phase.STARTING
        self.type_and_send(headrace, qtbot, "hi")
        message = headrace.window.chat.session.conversation.messages[-1]
        assert message.note == "Waiting for the model…"
        assert self.done(headrace, qtbot).message.text == "Hello there."

    def test_a_waiting_message_hears_of_the_end(
        self, open_app: Opener, stand_in: Callable[..., None], qtbot: QtBot
    ) -> None:
        stand_in("failed-model")
        headrace = open_app(start_engine_at_launch=True)
        self.type_and_send(headrace, qtbot, "hi")
        assert self.done(headrace, qtbot).error == "shard 2 is missing Fetch it."

    def test_without_an_engine(self, open_app: Opener, qtbot: QtBot) -> None:
        headrace = open_app()
        self.type_and_send(headrace, qtbot, "hi")
        assert "not running" in self.done(headrace, qtbot).error


def test_stats_of_every_kind_are_shown(open_app: Opener) -> None:
    main = open_app().window
    for stats in (Stats(), Stats(device="cpu", expert_total=8), Stats(expert_slots=4)):
        main.dashboard.show_stats(stats)
        main.rail.show_stats(stats)
    main.grab()
    main.resize(main.minimumSize())
    main.grab()
    assert main.childAt(QPoint(5, 5)) is not None


def test_the_place_on_the_screen_is_kept(open_app: Opener) -> None:
    headrace = open_app()
    headrace.window.resize(900, 680)
    headrace.window.end()
    saved: Settings = settings.load()
    assert saved.window_geometry
    assert open_app(window_geometry=saved.window_geometry).window.height() == 680
