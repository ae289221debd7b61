"""A button that copies, and shows for a moment that it did."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QTimer

from app.ui.widgets.basics import IconButton

_SHOWN_MS = 1_500


class CopyButton(IconButton):
    def __init__(self, name: str, copy: Callable[[], None]) -> None:
        super().__init__("copy", name, pixels=16)
        self._name = name
        self._copy = copy
        self._back = QTimer(self)
        self._back.setSingleShot(True)
        self._back.timeout.connect(lambda: self.show_as("copy", self._name))
        self.clicked.connect(self._copied)

    def _copied(self) -> None:
        self._copy()
        self.show_as("check", "Copied")
        self._back.start(_SHOWN_MS)
