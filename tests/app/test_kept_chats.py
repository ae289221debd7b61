"""The chat page with what it keeps, against a stand-in server."""

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from PySide6.QtCore import QMimeData, Qt, QUrl
from PySide6.QtTest import QAbstractItemModelTester
from PySide6.QtWidgets import QAbstractButton, QLineEdit
from pytestqt.qtbot import QtBot

from app.core.chats.records import Snapshot
from app.core.chats.store import ConversationStore, database
from app.core.conversation import ChatSettings, Conversation, MessageState
from app.ui import window
from app.ui.application import Headrace
from app.ui.pages.chat import ChatPage
from app.ui.widgets import conversation_list
from app.ui.widgets.message_view import AssistantMessage
from app.ui.widgets.transcript import MOST_VIEWS
from app.ui.widgets.user_message import UserMessage
from tests.app.conftest import PATIENCE_MS, Opener, close_app, ready

Start = Callable[..., ChatPage]


@pytest.fixture
def start(open_app: Opener, stand_in: Callable[..., None], qtbot: QtBot) -> Start:
    def starter(*, engine: bool = True, **changes: object) -> ChatPage:
        headrace = open_app(start_engine_at_launch=engine, **changes)
        if engine:
            ready(headrace, qtbot)
        headrace.window.open_page(window.CHAT)
        return headrace.window.chat

    return starter


def say(page: ChatPage, qtbot: QtBot, text: str) -> None:
    page.composer.editor.setPlainText(text)
    qtbot.keyClick(page.composer.editor, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: not page.session.busy, timeout=PATIENCE_MS)


def listed(page: ChatPage) -> list[str]:
    model = page.list.model
    rows = [model.index(at) for at in range(model.rowCount())]
    return [str(row.data()) for row in rows if model.entry(row) is not None]


def wait_listed(page: ChatPage, qtbot: QtBot, *wanted: str) -> None:
    qtbot.waitUntil(lambda: listed(page) == list(wanted), timeout=PATIENCE_MS)


def kept() -> list[str]:
    store = ConversationStore(database())
    store.open()
    with closing(store):
        return [entry.title for entry in store.entries()]


def fill(*chats: Conversation) -> None:
    store = ConversationStore(database())
    store.open()
    with closing(store):
        store.save([Snapshot.of(chat, chat.all.values()) for chat in chats])


def talk(turns: int, title: str = "old") -> Conversation:
    chat = Conversation()
    for at in range(turns):
        chat.ask(f"{title} {at}")
        chat.append(f"answer **{at}**")
        chat.finish()
    return chat


def test_a_conversation_is_listed_found_and_opened_again(start: Start, qtbot: QtBot) -> None:
    page = start()
    tester = QAbstractItemModelTester(page.list.model)
    say(page, qtbot, "About mills")
    wait_listed(page, qtbot, "About mills")
    qtbot.keyClick(page, Qt.Key.Key_N, Qt.KeyboardModifier.ControlModifier)
    assert not page.views
    say(page, qtbot, "About rivers")
    wait_listed(page, qtbot, "About rivers", "About mills")
    page.list.search.setText("MILLS")
    wait_listed(page, qtbot, "About mills")
    page.list.opened.emit(page.list.model.entry(page.list.model.index(1)).id)  # type: ignore[union-attr]
    qtbot.waitUntil(lambda: page.session.conversation.title == "About mills", timeout=PATIENCE_MS)
    qtbot.waitUntil(lambda: len(page.views) == 2, timeout=PATIENCE_MS)
    assert page.views[1].message.text == "Hello there."
    say(page, qtbot, "And?")
    assert [m.text for m in page.session.conversation.messages][2:] == ["And?", "Hello there."]
    del tester


def test_rename_and_delete_with_a_way_back(
    start: Start, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation_list, "UNDO_MS", 600_000)
    fill(talk(1, "one"))
    page = start(engine=False)
    wait_listed(page, qtbot, "one 0")
    view, model = page.list.view, page.list.model
    view.setCurrentIndex(model.index(1))
    qtbot.keyClick(view, Qt.Key.Key_F2)
    (editor,) = view.viewport().findChildren(QLineEdit)
    assert editor.accessibleName() == "New name"
    editor.setText(" Streams ")
    qtbot.keyClick(editor, Qt.Key.Key_Return)
    wait_listed(page, qtbot, "Streams")
    qtbot.keyClick(view, Qt.Key.Key_Delete)
    wait_listed(page, qtbot)
    page.list.undo.click()
    wait_listed(page, qtbot, "Streams")
    view.setCurrentIndex(model.index(1))
    qtbot.keyClick(view, Qt.Key.Key_Delete)
    page.list._forget()  # as after UNDO_MS
    wait_listed(page, qtbot)


def test_what_came_of_an_answer_is_on_disk_while_it_streams(
    start: Start, stand_in: Callable[..., None], qtbot: QtBot
) -> None:
    stand_in(reply='["x "' + ', "x "' * 999 + "]", pause="0.02")
    page = start()
    page.composer.editor.setPlainText("Go on")
    qtbot.keyClick(page.composer.editor, Qt.Key.Key_Return)

    def on_disk() -> bool:
        store = ConversationStore(database())
        store.open()
        with closing(store):
            entries = store.entries()
            messages = store.load(entries[0].id).messages if entries else []
        return len(messages) == 2 and messages[1].text.startswith("x x")

    qtbot.waitUntil(on_disk, timeout=PATIENCE_MS)
    assert page.session.busy
    qtbot.keyClick(page, Qt.Key.Key_Escape)
    assert page.session.conversation.messages[-1].state is MessageState.STOPPED


def test_a_temporary_chat_and_the_setting_keep_nothing(start: Start, qtbot: QtBot) -> None:
    page = start()
    page.temporary.click()
    say(page, qtbot, "secret")
    assert not page.session.kept and not page.temporary.isEnabled()
    page.session._store.update(keep_conversations=False)
    page.new_button.click()
    assert not page.temporary.isChecked()
    say(page, qtbot, "secret too")
    page.session._store.update(keep_conversations=True)
    page.new_button.click()
    say(page, qtbot, "known")
    wait_listed(page, qtbot, "known")
    page._archive.close()
    assert kept() == ["known"]


def test_chat_goes_on_where_nothing_can_be_kept(start: Start, qtbot: QtBot, home: Path) -> None:
    (home / "chats.db").mkdir()
    page = start()
    say(page, qtbot, "hello")
    assert page.views[1].message.text == "Hello there."
    qtbot.waitUntil(lambda: "not being kept" in page.list.kept.text(), timeout=PATIENCE_MS)
    (home / "chats.db").rmdir()
    say(page, qtbot, "again")
    qtbot.waitUntil(lambda: not page.list.kept.text(), timeout=PATIENCE_MS)
    wait_listed(page, qtbot, "hello")
    page._archive.close()
    store = ConversationStore(database())
    store.open()
    with closing(store):
        (entry,) = store.entries()
        assert len(store.load(entry.id).messages) == 4


def test_an_earlier_turn_is_edited_and_both_versions_stay(start: Start, qtbot: QtBot) -> None:
    page = start()
    say(page, qtbot, "first")
    qtbot.keyClick(page.composer.editor, Qt.Key.Key_Up)
    assert page.composer.editing and page.composer.editor.text() == "first"
    say(page, qtbot, "second")
    assert [m.text for m in page.session.conversation.messages] == ["second", "Hello there."]
    view = page.views[0]
    assert isinstance(view, UserMessage) and view.versions is not None
    assert view.versions.words.text() == "2 / 2"
    view.versions.earlier.click()
    qtbot.waitUntil(lambda: len(page.views) == 2, timeout=PATIENCE_MS)
    assert page.views[0].message.text == "first"
    answer = page.views[1]
    assert isinstance(answer, AssistantMessage)
    answer.again.click()
    qtbot.waitUntil(lambda: not page.session.busy, timeout=PATIENCE_MS)
    assert page.views[1].versions.words.text() == "2 / 2"  # type: ignore[union-attr]


def test_an_edit_can_be_given_up(start: Start, qtbot: QtBot) -> None:
    fill(talk(1))
    page = start(engine=False)
    wait_listed(page, qtbot, "old 0")
    page.session.open(page.list.model.entry(page.list.model.index(1)).id)  # type: ignore[union-attr]
    qtbot.waitUntil(lambda: len(page.views) == 2, timeout=PATIENCE_MS)
    modifiers = Qt.KeyboardModifier
    both = modifiers.ControlModifier | modifiers.ShiftModifier
    qtbot.keyClick(page, Qt.Key.Key_E, both)
    assert page.composer.editing
    qtbot.keyClick(page, Qt.Key.Key_Escape)
    assert not page.composer.editing and page.composer.editor.text() == ""


def test_files_are_dropped_shown_and_sent(start: Start, qtbot: QtBot, tmp_path: Path) -> None:
    page = start()
    good, bad = tmp_path / "a.txt", tmp_path / "b.bin"
    good.write_text("content")
    bad.write_bytes(b"\x00\xff")
    data = QMimeData()
    data.setUrls([QUrl.fromLocalFile(os.fspath(path)) for path in (good, bad)])
    page.composer.editor.insertFromMimeData(data)
    qtbot.waitUntil(lambda: len(page.composer.chips) == 1, timeout=PATIENCE_MS)
    qtbot.waitUntil(lambda: "not a text file" in page.composer.attachment, timeout=PATIENCE_MS)
    say(page, qtbot, "Sum it up.")
    assert not page.composer.chips
    (request,) = [m for m in page.session.conversation.for_request() if m["role"] == "user"]
    assert request["content"] == "File: a.txt\n```\ncontent\n```\n\nSum it up."
    page.transcript._show_places()
    page._edit_last()
    assert [chip.file.name for chip in page.composer.chips] == ["a.txt"]


def test_settings_belong_to_the_conversation(start: Start, qtbot: QtBot) -> None:
    page = start()
    dialog = page.open_settings()
    assert dialog.settings == ChatSettings() and dialog.thinking.isHidden()
    dialog.system.setPlainText("Be brief.")
    dialog.temperature.setValue(0.0)
    dialog.top_p.setValue(0.9)
    dialog.most.setValue(64)
    dialog.save.click()
    say(page, qtbot, "hello")
    wanted = ChatSettings(system="Be brief.", temperature=0.0, top_p=0.9, max_tokens=64)
    assert page.session.conversation.settings == wanted
    page.new_button.click()
    assert page.session.conversation.settings == ChatSettings()
    page.session.efforts = ("none", "high")
    thinking = page.open_settings().effort
    words = [thinking.itemText(at) for at in range(thinking.count())]
    assert words == ["The model's own", "Off", "On"]
    page._archive.close()
    store = ConversationStore(database())
    store.open()
    with closing(store):
        assert store.load(store.entries()[0].id).settings == wanted


def test_of_a_long_conversation_the_newest_turns_are_shown(start: Start, qtbot: QtBot) -> None:
    fill(talk(MOST_VIEWS))
    page = start(engine=False)
    wait_listed(page, qtbot, "old 0")
    page.session.open(page.list.model.entry(page.list.model.index(1)).id)  # type: ignore[union-attr]
    qtbot.waitUntil(lambda: len(page.views) == MOST_VIEWS, timeout=PATIENCE_MS)
    assert page.views[-1].message.text == f"answer **{MOST_VIEWS - 1}**"
    assert page.transcript.earlier.isVisible()
    page.transcript.earlier.click()
    qtbot.waitUntil(lambda: len(page.views) == 2 * MOST_VIEWS, timeout=PATIENCE_MS)
    qtbot.waitUntil(lambda: page.transcript.settled, timeout=PATIENCE_MS)
    assert page.views[0].message.text == "old 0" and not page.transcript.earlier.isVisible()


def test_everything_that_can_be_pressed_has_a_name(start: Start, qtbot: QtBot) -> None:
    chat = talk(2)
    chat.retry()
    chat.append("other")
    chat.append_call(0, "find", "{}")
    chat.finish()
    fill(chat)
    page = start(engine=False)
    wait_listed(page, qtbot, "old 0")
    page.session.open(chat.id)
    qtbot.waitUntil(lambda: len(page.views) == 4, timeout=PATIENCE_MS)
    pressed = [b for b in page.findChildren(QAbstractButton) if b.parent() is not page.list.search]
    assert [b.icon().name() for b in pressed if not b.accessibleName() and not b.text()] == []
    view = page.views[3]
    assert isinstance(view, AssistantMessage)
    assert view._calls[0].accessibleName() == "Wants to call find"


def test_search_has_a_key_and_narrow_windows_hide_the_list(start: Start, qtbot: QtBot) -> None:
    page = start(engine=False)
    qtbot.waitUntil(page.isActiveWindow, timeout=PATIENCE_MS)
    page.window().resize(780, 600)
    assert page.list.isHidden()
    qtbot.keyClick(page, Qt.Key.Key_F, Qt.KeyboardModifier.ControlModifier)
    assert page.list.isVisible() and page.list.search.hasFocus()
    page.window().resize(1200, 800)
    assert page.list.isVisible()


def test_an_app_that_ends_keeps_what_streams(
    open_app: Opener, stand_in: Callable[..., None], qtbot: QtBot
) -> None:
    stand_in(reply='["x "' + ', "x "' * 999 + "]", pause="0.02")
    headrace: Headrace = open_app(start_engine_at_launch=True)
    ready(headrace, qtbot)
    page = headrace.window.chat
    page.session.ask("Go on")
    messages = page.session.conversation.messages
    qtbot.waitUntil(lambda: messages[-1].text != "", timeout=PATIENCE_MS)
    close_app(headrace, qtbot)
    assert kept() == ["Go on"]
