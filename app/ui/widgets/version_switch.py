"""Goes between the versions of a turn: < 2 / 3 >."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget

from app.core.conversation import Message
from app.ui.widgets.basics import IconButton, label, row


class VersionSwitch(QWidget):
    chosen = Signal(object)
    """The Message that is to be shown instead."""

    def __init__(self) -> None:
        super().__init__()
        self._versions: list[Message] = []
        self._at = 0
        self.earlier = IconButton("left", "Earlier version", pixels=14)
        self.later = IconButton("right", "Later version", pixels=14)
        self.earlier.clicked.connect(lambda: self.chosen.emit(self._versions[self._at - 1]))
        self.later.clicked.connect(lambda: self.chosen.emit(self._versions[self._at + 1]))
        self.words = label("", "hint")
        line = row(2)
        for widget in (self.earlier, self.words, self.later):
            line.addWidget(widget)
        self.setLayout(line)
        self.hide()

    def show_versions(self, versions: list[Message], shown: Message) -> None:
        """Hidden where there is only one."""
        self._versions = versions
        self._at = next((at for at, m in enumerate(versions) if m is shown), 0)
        self.words.setText(f"{self._at + 1} / {len(versions)}")
        self.words.setAccessibleName(f"Version {self._at + 1} of {len(versions)}")
        self.earlier.setEnabled(self._at > 0)
        self.later.setEnabled(self._at + 1 < len(versions))
        self.setVisible(len(versions) > 1)
