"""What the model was thinking: folded away, as long as nobody asks for it."""

from __future__ import annotations

import math

from PySide6.QtCore import Qt
from PySide6.QtGui import QTextCursor
from PySide6.QtWidgets import QFrame, QPlainTextEdit, QToolButton, QWidget

from app.core import units
from app.core.conversation import Message
from app.ui import theme
from app.ui.widgets.basics import column

_MOST_LINES = 14
_PIECE_CHARS = 4_000
"""So much is laid out at once."""


class Thoughts(QWidget):
    def __init__(self) -> None:
        super().__init__()
        self._whole = ""
        self._shown = 0
        self.toggle = QToolButton()
        self.toggle.setObjectName("fold")
        self.toggle.setCheckable(True)
        self.toggle.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self.toggle.setAccessibleName("Show what the model was thinking")
        self.toggle.toggled.connect(self._unfold)
        self.text = QPlainTextEdit()
        self.text.setObjectName("thoughts")
        self.text.setAccessibleName("What the model was thinking")
        self.text.setReadOnly(True)
        self.text.setUndoRedoEnabled(False)
        self.text.setFrameShape(QFrame.Shape.NoFrame)
        self.text.hide()
        body = column(4)
        body.addWidget(self.toggle)
        body.addWidget(self.text)
        self.setLayout(body)
        self.tint()

    def show_message(self, message: Message, *, thinking: bool) -> None:
        self._whole = message.reasoning.strip("\n")
        self.setVisible(bool(self._whole.strip()))
        self.toggle.setText(_words(message, thinking=thinking))
        if self.toggle.isChecked():
            self._add()

    @property
    def pending(self) -> bool:
        """Whether there is more to be laid out."""
        return self.toggle.isChecked() and self._shown < len(self._whole)

    def tint(self) -> None:
        self.toggle.setIcon(theme.icon("up" if self.toggle.isChecked() else "down", "muted"))

    def _unfold(self, on: bool) -> None:
        self.text.setVisible(on)
        self.tint()
        if on:
            self._add()

    def _add(self) -> None:
        """Write what came since, at the end; who reads further up is left there."""
        piece = self._whole[self._shown : self._shown + _PIECE_CHARS]
        if not piece:
            return
        bar = self.text.verticalScrollBar()
        at_end = bar.value() >= bar.maximum() - 1
        cursor = QTextCursor(self.text.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        cursor.insertText(piece)
        self._shown += len(piece)
        lines = min(_MOST_LINES, math.ceil(self.text.document().size().height()))
        self.text.setFixedHeight(lines * self.text.fontMetrics().lineSpacing() + 12)
        if at_end:
            bar.setValue(bar.maximum())


def _words(message: Message, *, thinking: bool) -> str:
    if thinking:
        return "Thinking…"
    if message.thinking_s > 0:
        return f"Thought for {units.duration(message.thinking_s)}"
    return "Thoughts"
