"""A block of code in an answer: highlighted, scrolled sideways, with a button that copies it."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QFontMetrics, QGuiApplication, QWheelEvent
from PySide6.QtWidgets import QFrame, QSizePolicy, QTextEdit, QWidget

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
        self._language = label("", "hint")
        self._text = _CodeText()
        self._text.setObjectName("codeText")
        self._text.setReadOnly(True)
        self._text.setFrameShape(QFrame.Shape.NoFrame)
        self._text.setLineWrapMode(QTextEdit.LineWrapMode.NoWrap)
        self._text.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
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
        self._code = code
        self._language.setText(code.language or "code")
        self._text.setAccessibleName(f"{code.language or 'Code'} block")
        family = theme.mono_family()
        self._text.setHtml(
            f"<pre style=\"margin:0; font-family:'{family}'; font-size:13px\">{code.html}</pre>"
        )
        self._fit()

    def _fit(self) -> None:
        height = int(self._text.document().size().height())
        font = self._text.font()
        width = QFontMetrics(font).horizontalAdvance(max(self.text.splitlines() or [""], key=len))
        bar = self._text.horizontalScrollBar().sizeHint().height() if width > 600 else 0
        self._text.setFixedHeight(height + bar + 2)

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self._code.text)
