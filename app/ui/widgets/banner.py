"""Something went wrong: what, what to do about it, and the buttons to do it."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QLabel, QPushButton

from app.ui import theme
from app.ui.widgets.basics import button, column, label, row
from engine.errors import told


class Banner(QFrame):
    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("banner")
        self._mark = QLabel()
        self._mark.setAccessibleName("Warning")
        self._text = label("", wrap=True)
        self._text.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._hint = label("", "muted", wrap=True)
        words = column(2)
        words.addWidget(self._text)
        words.addWidget(self._hint)
        self._buttons = row()
        body = row(12)
        body.setContentsMargins(16, 12, 12, 12)
        body.addWidget(self._mark)
        body.addLayout(words, 1)
        body.addLayout(self._buttons)
        self.setLayout(body)
        self.hide()

    @property
    def text(self) -> str:
        return self._text.text()

    def add_button(self, text: str) -> QPushButton:
        made = button(text)
        self._buttons.addWidget(made, 0, Qt.AlignmentFlag.AlignVCenter)
        return made

    def show_problem(self, text: str, hint: str = "") -> None:
        """An empty text hides the banner."""
        self._mark.setPixmap(theme.icon("warning", "bad").pixmap(20, 20))
        self._text.setText(text)
        self._hint.setText(hint)
        self._hint.setVisible(bool(hint))
        self.setAccessibleName("Problem")
        self.setAccessibleDescription(told(text, hint))
        self.setVisible(bool(text))
