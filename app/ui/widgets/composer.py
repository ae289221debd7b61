"""Where the person writes: grows with the text; Enter sends, Shift+Enter starts a line."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QSize, Qt, Signal
from PySide6.QtGui import QFocusEvent, QKeyEvent
from PySide6.QtWidgets import QFrame, QPlainTextEdit

from app.ui.widgets.basics import IconButton, restyle, row

_MOST_LINES = 8


class _Editor(QPlainTextEdit):
    submitted = Signal()
    focus_changed = Signal(bool)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        enter = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        if enter and not event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            self.submitted.emit()
        else:
            super().keyPressEvent(event)

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        self.focus_changed.emit(True)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.focus_changed.emit(False)


class Composer(QFrame):
    sent = Signal(str)
    stopped = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("composer")
        self._busy = False
        self.editor = _Editor()
        self.editor.setPlaceholderText(
            "Ask the model…   Enter sends, Shift+Enter starts a new line"
        )
        self.editor.setAccessibleName("Message to the model")
        self.editor.setTabChangesFocus(True)
        self.editor.setFrameShape(QFrame.Shape.NoFrame)
        self.editor.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAsNeeded)
        self.editor.document().setDocumentMargin(6)
        self.send = IconButton("send", "Send", colour="accent_text", pixels=20)
        self.send.setObjectName("send")
        body = row(8)
        body.setContentsMargins(14, 8, 8, 8)
        body.addWidget(self.editor, 1)
        body.addWidget(self.send, 0, Qt.AlignmentFlag.AlignBottom)
        self.setLayout(body)
        self.editor.submitted.connect(self._submit)
        self.editor.focus_changed.connect(lambda focused: restyle(self, focused=focused))
        self.editor.textChanged.connect(self._text_changed)
        self.send.clicked.connect(self._clicked)
        self._text_changed()

    def set_busy(self, busy: bool) -> None:
        """While an answer is written the button stops it."""
        if busy != self._busy:
            self._busy = busy
            self.send.show_as("stop" if busy else "send", "Stop" if busy else "Send")
        self._text_changed()

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.FontChange and hasattr(self, "editor"):
            self._text_changed()

    def _clicked(self) -> None:
        if self._busy:
            self.stopped.emit()
        else:
            self._submit()

    def _submit(self) -> None:
        text = self.editor.toPlainText()
        if text.strip() and not self._busy:
            self.editor.clear()
            self.sent.emit(text)

    def _text_changed(self) -> None:
        self.send.setEnabled(self._busy or bool(self.editor.toPlainText().strip()))
        lines = min(_MOST_LINES, max(1, int(self.editor.document().size().height())))
        height = lines * self.editor.fontMetrics().lineSpacing() + 12
        self.editor.setFixedHeight(max(height, 32))

    def sizeHint(self) -> QSize:
        return QSize(480, 50)
