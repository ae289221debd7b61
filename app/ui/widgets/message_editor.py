"""The field in which the person writes: whatever comes into it, it stays quick.

Qt lays a paragraph out anew at each change of it, so a long one costs milliseconds a key. Keys that
come faster than that (a text expander, a remote desktop) are therefore inserted together, and a
text that is too long to be laid out at all is handed on as a whole.
"""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QMimeData, Qt, QTimer, Signal
from PySide6.QtGui import QFocusEvent, QInputMethodEvent, QKeyEvent, QMouseEvent
from PySide6.QtWidgets import QPlainTextEdit

MOST_CHARS = 20_000
"""So much is laid out in some tens of milliseconds, without a single blank in it too."""
_QUICK_CHARS = 2_000
"""Up to here a key costs next to nothing."""
_NO_TEXT = ~(Qt.KeyboardModifier.ShiftModifier | Qt.KeyboardModifier.KeypadModifier)


class MessageEditor(QPlainTextEdit):
    submitted = Signal()
    """Enter, without Shift."""
    overflowed = Signal(str)
    """A text that was pasted or dropped, and that would be too much here."""
    files_dropped = Signal(object)
    """list[Path]: files were dropped or pasted here."""
    up_pressed = Signal()
    """Up, where nothing is written."""
    focus_changed = Signal(bool)

    def __init__(self) -> None:
        super().__init__()
        self._typed = ""
        self._soon = QTimer(self)
        self._soon.setSingleShot(True)
        self._soon.setInterval(0)
        self._soon.timeout.connect(self._insert_typed)

    def text(self) -> str:
        self._insert_typed()
        return self.toPlainText()

    def insertFromMimeData(self, source: QMimeData) -> None:
        self._insert_typed()
        if files := local_files(source):
            self.files_dropped.emit(files)
            return
        text = source.text()
        if self.document().characterCount() + len(text) > MOST_CHARS:
            self.overflowed.emit(text)
        else:
            super().insertFromMimeData(source)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        letters = event.text() if not event.modifiers() & _NO_TEXT else ""
        if letters.isprintable() and letters and self.document().characterCount() > _QUICK_CHARS:
            self._typed += letters
            self._soon.start()
            return
        self._insert_typed()
        enter = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        if enter and not event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            self.submitted.emit()
        elif event.key() == Qt.Key.Key_Up and self.document().isEmpty():
            self.up_pressed.emit()
        else:
            super().keyPressEvent(event)

    def inputMethodEvent(self, event: QInputMethodEvent) -> None:
        self._insert_typed()
        super().inputMethodEvent(event)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self._insert_typed()
        super().mousePressEvent(event)

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        self.focus_changed.emit(True)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        self._insert_typed()
        super().focusOutEvent(event)
        self.focus_changed.emit(False)

    def _insert_typed(self) -> None:
        letters, self._typed = self._typed, ""
        if letters:
            self.insertPlainText(letters)
            self.ensureCursorVisible()


def local_files(source: QMimeData) -> list[Path]:
    return [Path(url.toLocalFile()) for url in source.urls() if url.isLocalFile()]
