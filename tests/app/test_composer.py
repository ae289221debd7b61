"""Long texts: pasted, typed faster than they can be laid out, and sent."""

from collections.abc import Iterator

import pytest
from PySide6.QtCore import QEvent, QMimeData, Qt
from PySide6.QtGui import QGuiApplication, QInputMethodEvent, QKeyEvent
from PySide6.QtWidgets import QApplication, QLabel
from pytestqt.qtbot import QtBot

from app.core import units
from app.core.conversation import Message
from app.core.excerpt import beginning
from app.ui.widgets import composer as composer_module
from app.ui.widgets import message_editor
from app.ui.widgets.composer import Composer
from app.ui.widgets.copy_button import CopyButton
from app.ui.widgets.message_view import UserMessage
from tests.app.conftest import PATIENCE_MS

WORDS = "The quick brown fox jumps over. "
LONG = {"words": WORDS * 32_000, "lines": "a line\n" * 150_000, "no blank": "x" * 1_000_000}


@pytest.fixture
def composer(qtbot: QtBot) -> Iterator[Composer]:
    made = Composer()
    qtbot.addWidget(made)
    made.resize(700, 200)
    made.show()
    yield made


def paste(composer: Composer, text: str) -> None:
    QGuiApplication.clipboard().setText(text)
    composer.editor.paste()


def sent(composer: Composer, qtbot: QtBot) -> str:
    with qtbot.waitSignal(composer.sent) as signal:
        qtbot.keyClick(composer.editor, Qt.Key.Key_Return)
    return str(signal.args[0])


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_a_million_characters_are_attached_and_not_laid_out(
    composer: Composer, qtbot: QtBot, text: str
) -> None:
    paste(composer, text)
    assert composer.editor.text() == ""
    assert f"{len(text):,} characters" in composer.attachment
    assert composer.send.isEnabled()
    qtbot.keyClicks(composer.editor, "Sum it up.")
    assert sent(composer, qtbot) == f"{text}\n\nSum it up."
    assert composer.attachment == "" and not composer.send.isEnabled()


def test_what_fits_is_pasted_as_text(composer: Composer, qtbot: QtBot) -> None:
    text = (WORDS * 400)[:10_800]
    paste(composer, text)
    assert composer.editor.text() == text and composer.attachment == ""
    paste(composer, text)  # both together would not fit
    assert composer.editor.text() == text and "10,800 characters" in composer.attachment
    paste(composer, text)
    assert "2 pasted texts: 21,600 characters" in composer.attachment
    assert sent(composer, qtbot) == "\n\n".join([text] * 3)


def test_dropped_texts_are_treated_alike(composer: Composer) -> None:
    data = QMimeData()
    data.setText("y" * (message_editor.MOST_CHARS + 1))
    composer.editor.insertFromMimeData(data)
    assert composer.editor.text() == "" and composer.attachment


def test_an_attached_text_can_be_removed(composer: Composer, qtbot: QtBot) -> None:
    paste(composer, LONG["words"])
    buttons = composer.findChildren(type(composer.send))
    (remove,) = [button for button in buttons if button.accessibleName().startswith("Remove")]
    remove.click()
    assert composer.attachment == "" and not composer.send.isEnabled()
    qtbot.keyClicks(composer.editor, "hi")
    assert sent(composer, qtbot) == "hi"


def test_more_than_a_message_takes_is_refused(composer: Composer, qtbot: QtBot) -> None:
    paste(composer, "z" * composer_module.MOST_CHARS)
    paste(composer, WORDS * 1_000)
    assert "takes 2,000,000 characters" in composer.attachment
    assert "2,032,000" in composer.attachment
    assert sent(composer, qtbot).strip() == "z" * composer_module.MOST_CHARS


def test_keys_that_come_fast_are_laid_out_together(composer: Composer, qtbot: QtBot) -> None:
    """A paragraph is laid out anew at each change, so that a change a key would take minutes."""
    paste(composer, "a" * 3_000)
    changes: list[None] = []
    composer.editor.textChanged.connect(lambda: changes.append(None))
    for letter in "ä b" * 1_000:
        for kind in (QEvent.Type.KeyPress, QEvent.Type.KeyRelease):
            event = QKeyEvent(kind, 0, Qt.KeyboardModifier.NoModifier, letter)
            QApplication.postEvent(composer.editor, event)
    qtbot.waitUntil(lambda: composer.editor.toPlainText().endswith("ä b"), timeout=PATIENCE_MS)
    assert composer.editor.toPlainText() == "a" * 3_000 + "ä b" * 1_000
    assert len(changes) < 30


def test_whatever_comes_between_fast_keys_keeps_its_place(composer: Composer, qtbot: QtBot) -> None:
    begin = "a" * 3_000
    paste(composer, begin)
    editor = composer.editor
    qtbot.keyClicks(editor, "bc")
    qtbot.keyClick(editor, Qt.Key.Key_Backspace)
    qtbot.keyClicks(editor, "D")
    qtbot.keyClick(editor, Qt.Key.Key_Return, Qt.KeyboardModifier.ShiftModifier)
    qtbot.keyClicks(editor, "e")
    committed = QInputMethodEvent()
    committed.setCommitString("語")
    QApplication.sendEvent(editor, committed)
    qtbot.keyClicks(editor, "f")
    paste(composer, "g")
    qtbot.keyClicks(editor, "h")
    qtbot.mouseClick(editor.viewport(), Qt.MouseButton.LeftButton)
    assert editor.toPlainText() == f"{begin}bD\ne語fgh"
    qtbot.keyClick(editor, Qt.Key.Key_End, Qt.KeyboardModifier.ControlModifier)
    qtbot.keyClicks(editor, "i")
    assert sent(composer, qtbot) == f"{begin}bD\ne語fghi"


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_of_a_long_message_the_beginning_is_shown(qtbot: QtBot, text: str) -> None:
    view = UserMessage(Message("user", text))
    qtbot.addWidget(view)
    words = [label.text() for label in view.findChildren(QLabel)]
    shown, rest = words
    assert text.startswith(shown) and 0 < len(shown) <= 2_000
    assert rest == f"… and {units.counted(len(text) - len(shown), 'more character')}"
    view.findChildren(CopyButton)[0].click()
    assert QGuiApplication.clipboard().text() == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("short", "short"),
        ("a b c d e f g h", "a b c d e"),
        ("abcdefghijklmno", "abcdefghij"),
        ("a bcdefghijklmno", "a bcdefghi"),
        ("1\n2\n3\n4", "1\n2\n3"),
        ("1\n2\n3\n", "1\n2\n3"),
        ("", ""),
    ],
)
def test_beginnings(text: str, shown: str) -> None:
    assert beginning(text, most_chars=10, most_lines=3) == (shown, len(text) - len(shown))
