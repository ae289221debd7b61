"""A model in a list: its name and what it is, whether it fits, and what can be done with it."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QPushButton, QWidget

from app.ui.widgets.basics import button, column, label, row
from app.ui.widgets.fit_badge import FitBadge
from app.ui.widgets.flow_layout import FlowLayout


class ModelRow(QWidget):
    def __init__(self, name: str, tags: Sequence[str], text: str) -> None:
        super().__init__()
        self.name = name
        self.setAccessibleName(name)
        top = FlowLayout()
        title = label(name, "modelName")
        title.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        title.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        top.add(title, *(label(tag, "tag") for tag in tags))
        self._text = label(text, "muted", wrap=True)
        self._text.setVisible(bool(text))
        self.badge = FitBadge()
        words = column(4)
        words.addLayout(top)
        words.addWidget(self._text)
        words.addWidget(self.badge)
        self._buttons = row(8)
        body = row(16)
        body.setContentsMargins(0, 10, 0, 10)
        body.addLayout(words, 1)
        body.addLayout(self._buttons)
        self.setLayout(body)

    @property
    def text(self) -> str:
        return self._text.text()

    @property
    def buttons(self) -> list[QPushButton]:
        return self.findChildren(QPushButton)

    def add_button(self, words: str, *, primary: bool = False) -> QPushButton:
        """Its accessible name has the model's, since a list has many of the same words."""
        made = button(words, primary=primary)
        made.setAccessibleName(f"{words}: {self.name}")
        self._buttons.addWidget(made, 0, Qt.AlignmentFlag.AlignVCenter)
        return made

    def add_state(self, words: str) -> None:
        """Instead of a button: how it is."""
        self._buttons.addWidget(label(words, "muted"), 0, Qt.AlignmentFlag.AlignVCenter)


def rule() -> QFrame:
    """A line between two rows."""
    made = QFrame()
    made.setObjectName("rule")
    made.setFixedHeight(1)
    return made
