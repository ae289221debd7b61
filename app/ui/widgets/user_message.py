"""The person's words in the chat."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFrame, QHBoxLayout, QSizePolicy, QWidget

from app.core import units
from app.core.conversation import Message
from app.core.excerpt import beginning
from app.ui.widgets.basics import IconButton, column, label, row
from app.ui.widgets.copy_button import CopyButton
from app.ui.widgets.file_chip import FileChip
from app.ui.widgets.flow_layout import FlowLayout
from app.ui.widgets.version_switch import VersionSwitch

_INDENT = 64
_MOST_CHARS, _MOST_LINES = 2_000, 40
"""Of a message: more is laid out too slowly, and hides the conversation."""


class UserMessage(QWidget):
    """As typed, in a bubble at the right; of a long text its beginning."""

    edit_asked = Signal(object)
    """The Message that is to be said otherwise."""
    chosen = Signal(object)
    """The version of it, a Message, that is to be shown instead."""

    def __init__(self, message: Message) -> None:
        super().__init__()
        self.message = message
        self.versions: VersionSwitch | None = None
        shown, left_out = beginning(message.text, _MOST_CHARS, _MOST_LINES)
        text = label(shown, wrap=True)
        text.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse
            | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        text.setAccessibleName("You said")
        text.setAccessibleDescription(shown)
        bubble = QFrame()
        bubble.setObjectName("bubble")
        inner = column()
        inner.setContentsMargins(16, 10, 16, 10)
        if message.files:
            chips = FlowLayout(6, 6)
            chips.add(*map(FileChip, message.files))
            inner.addLayout(chips)
        if shown:
            inner.addWidget(text)
        if left_out:
            inner.addLayout(self._make_rest(left_out))
        bubble.setLayout(inner)
        widest = max(text.fontMetrics().horizontalAdvance(line) for line in shown.split("\n"))
        self._wanted = max(min(widest + 36, 480), 240 if message.files else 0)
        bubble.setMinimumWidth(self._wanted)
        self._bubble = bubble
        bubble.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Preferred)
        bubble_line = row()
        bubble_line.addStretch()
        bubble_line.addWidget(bubble)
        body = column(2)
        body.setContentsMargins(_INDENT, 0, 0, 0)
        body.addLayout(bubble_line)
        body.addLayout(self._make_foot())
        self.setLayout(body)

    def show_place(self, versions: list[Message], *, busy: bool) -> None:
        """`versions`: this message among those that can stand here."""
        if self.versions is None and len(versions) > 1:
            self.versions = VersionSwitch()
            self.versions.chosen.connect(self.chosen)
            self._foot.insertWidget(1, self.versions)
        if self.versions is not None:
            self.versions.show_versions(versions, self.message)
            self.versions.setEnabled(not busy)
        self.edit.setEnabled(not busy)

    def set_room(self, width: int) -> None:
        """So wide may the message be."""
        self._bubble.setMinimumWidth(max(0, min(self._wanted, width - _INDENT)))

    def _make_rest(self, left_out: int) -> QHBoxLayout:
        line = row(4)
        line.addWidget(label(f"… and {units.counted(left_out, 'more character')}", "hint"))
        line.addWidget(CopyButton("Copy the whole message", self._copy))
        line.addStretch()
        return line

    def _make_foot(self) -> QHBoxLayout:
        self.edit = IconButton(
            "edit", "Edit and go on from here (the last one: Ctrl+Shift+E)", pixels=14
        )
        self.edit.clicked.connect(lambda: self.edit_asked.emit(self.message))
        self._foot = row(2)
        self._foot.addStretch()
        self._foot.addWidget(self.edit)
        return self._foot

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self.message.text)
