"""A block of code in an answer: highlighted, scrolled sideways, with a button that copies it."""

from __future__ import annotations

from functools import lru_cache

from PySide6.QtCore import Qt
from PySide6.QtGui import (
    QColor,
    QFont,
    QGuiApplication,
    QResizeEvent,
    QTextCharFormat,
    QTextCursor,
    QWheelEvent,
)
from PySide6.QtWidgets import QFrame, QSizePolicy, QTextEdit, QWidget

from app.core.code_spans import CodeSpans
from app.core.markdown import Code
from app.ui import theme
from app.ui.widgets.basics import column, label, row
from app.ui.widgets.copy_button import CopyButton


class _CodeText(QTextEdit):
    """Leaves the wheel's up and down to the page."""

    def wheelEvent(self, event: QWheelEvent) -> None:
        if abs(event.angleDelta().x()) > abs(event.angleDelta().y()):
            super().wheelEvent(event)
        else:
            event.ignore()


class CodeBlock(QFrame):
    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("codeBlock")
        self._code = Code("", "", "")
        self._spans = CodeSpans("", theme.active().code_style)
        self._settled = self._settled_at = 0
        """Characters of the code that stay as they are, and where they end in the document."""
        self._language = label("", "hint")
        self._text = _CodeText()
        self._text.setObjectName("codeText")
        self._text.setReadOnly(True)
        self._text.setUndoRedoEnabled(False)
        self._text.setFrameShape(QFrame.Shape.NoFrame)
        self._text.setLineWrapMode(QTextEdit.LineWrapMode.NoWrap)
        self._text.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._text.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse
            | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        self._text.document().setDocumentMargin(0)
        bar = QWidget()
        bar.setObjectName("codeBar")
        top = row()
        top.setContentsMargins(14, 4, 6, 4)
        top.addWidget(self._language)
        top.addStretch()
        top.addWidget(CopyButton("Copy code", self._copy))
        bar.setLayout(top)
        fixed = QSizePolicy.Policy.Fixed
        bar.setSizePolicy(QSizePolicy.Policy.Expanding, fixed)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, fixed)
        inner = column(0)
        inner.setContentsMargins(14, 10, 8, 10)
        inner.addWidget(self._text)
        body = column(0)
        body.addWidget(bar)
        body.addLayout(inner)
        self.setLayout(body)

    @property
    def text(self) -> str:
        return self._code.text

    def show_code(self, code: Code) -> None:
        """Show this code; of one that goes on from what is shown only the end is written anew."""
        grown = code.language == self._code.language and code.text.startswith(self._code.text)
        if not grown or not self._code.text:
            self._spans = CodeSpans(code.language, theme.active().code_style)
            self._settled = self._settled_at = 0
            self._language.setText(code.language or "code")
            self._text.setAccessibleName(f"{code.language or 'Code'} block")
        self._code = code
        aside = self._text.horizontalScrollBar()
        kept = aside.value() if grown else 0
        self._write(code.text[self._settled :])
        if not self._text.textCursor().hasSelection():
            self._text.moveCursor(QTextCursor.MoveOperation.Start)
        aside.setValue(kept)
        self._fit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def tint(self) -> None:
        """Colours are those of another scheme now."""
        code, self._code = self._code, Code("", "", "")
        self.show_code(code)

    def _write(self, tail: str) -> None:
        spans, settled = self._spans.spans(tail)
        cursor = QTextCursor(self._text.document())
        cursor.beginEditBlock()
        cursor.setPosition(self._settled_at)
        cursor.movePosition(QTextCursor.MoveOperation.End, QTextCursor.MoveMode.KeepAnchor)
        cursor.removeSelectedText()
        at, settled_at = 0, self._settled_at
        for span in spans:
            if at == settled:
                settled_at = cursor.position()
            cursor.insertText(
                span.text, _look(span.colour or theme.active().text, span.bold, span.italic)
            )
            at += len(span.text)
        if at == settled:
            settled_at = cursor.position()
        cursor.endEditBlock()
        self._settled += settled
        self._settled_at = settled_at

    def _fit(self) -> None:
        size = self._text.document().size()
        over = size.width() > self._text.viewport().width() > 100
        bar = self._text.horizontalScrollBar().sizeHint().height() if over else 0
        self._text.setFixedHeight(int(size.height()) + bar + 2)

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self._code.text)


@lru_cache(maxsize=256)
def _look(colour: str, bold: bool, italic: bool) -> QTextCharFormat:
    look = QTextCharFormat()
    font = QFont(theme.mono_family())
    font.setPixelSize(13)
    font.setBold(bold)
    font.setItalic(italic)
    look.setFont(font)
    look.setForeground(QColor(colour))
    return look
