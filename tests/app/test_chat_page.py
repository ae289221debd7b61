"""The chat page against a stand-in, whose answers come as a test wants them."""

from collections.abc import Callable

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QLabel
from pytestqt.qtbot import QtBot

from app.core.conversation import MessageState
from app.core.supervisor import Phase
from app.ui import window
from app.ui.application import Headrace
from app.ui.widgets.code_block import CodeBlock
from app.ui.widgets.message_view import AssistantMessage
from tests.app.conftest import PATIENCE_MS, Opener, ready


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
        qtbot.waitUntil(lambda: not page.session.busy, timeout=PATIENCE_MS)
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
        assert view.error == "the prompt is too long. Shorten it."
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

    @pytest.mark.parametrize(("pause", "rated"), [("0", False), ("0.01", True)])
    def test_a_rate_is_told_of_what_came_over_time(
        self,
        open_app: Opener,
        stand_in: Callable[..., None],
        qtbot: QtBot,
        monkeypatch: pytest.MonkeyPatch,
        pause: str,
        rated: bool,
    ) -> None:
        """What came in one burst tells the speed of the window, not of the engine."""
        if not rated:
            monkeypatch.setattr("app.ui.chat_session._RATED_S", 30.0)
        stand_in(reply='["x "' + ', "x "' * 42 + "]", pause=pause)
        headrace = open_app(start_engine_at_launch=True)
        ready(headrace, qtbot)
        self.type_and_send(headrace, qtbot, "hi")
        note = self.done(headrace, qtbot).message.note
        assert "43 tokens" in note and ("tok/s" in note) == rated

    def test_stop_keeps_what_came(
        self, open_app: Opener, stand_in: Callable[..., None], qtbot: QtBot
    ) -> None:
        stand_in(reply='["x "' + ', "x "' * 999 + "]", pause="0.02")
        headrace = open_app(start_engine_at_launch=True)
        ready(headrace, qtbot)
        self.type_and_send(headrace, qtbot, "hi")
        page = headrace.window.chat
        qtbot.waitUntil(
            lambda: len(page.session.conversation.messages[-1].text) > 10, timeout=PATIENCE_MS
        )
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
        qtbot.waitUntil(lambda: bar.maximum() > 100, timeout=PATIENCE_MS)
        qtbot.waitUntil(lambda: bar.value() == bar.maximum(), timeout=PATIENCE_MS)
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

    @pytest.mark.parametrize("reply", ['[" \\n", "\\u200b", " "]', "[]"])
    def test_an_answer_that_cannot_be_seen(
        self, open_app: Opener, stand_in: Callable[..., None], qtbot: QtBot, reply: str
    ) -> None:
        stand_in(reply=reply)
        headrace = open_app(start_engine_at_launch=True)
        ready(headrace, qtbot)
        headrace.window.open_page(window.CHAT)
        self.type_and_send(headrace, qtbot, "hi")
        view = self.done(headrace, qtbot)
        wanted = "has no text." if reply == "[]" else "is blank: white space alone."
        assert view.stand_in == f"The model's answer {wanted}"
        said = [words.text() for words in view.findChildren(QLabel) if words.isVisible()]
        assert view.stand_in in said

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
        assert self.done(headrace, qtbot).error == "shard 2 is missing. Fetch it."

    def test_without_an_engine(self, open_app: Opener, qtbot: QtBot) -> None:
        headrace = open_app()
        self.type_and_send(headrace, qtbot, "hi")
        assert "not running" in self.done(headrace, qtbot).error
