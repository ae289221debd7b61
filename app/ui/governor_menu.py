"""The tray's part for VRAM: what it is used for now, and the three modes."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtGui import QAction, QActionGroup
from PySide6.QtWidgets import QMenu

from app.core.governor.policy import Mode
from app.core.governor.view import ActionKind, GovernorView, ViewAction

_MODES = (
    (Mode.AUTO, ViewAction(ActionKind.AUTO, "Automatic")),
    (Mode.PAUSED, ViewAction(ActionKind.PAUSE, "Pause for an hour")),
    (Mode.GIVE_BACK, ViewAction(ActionKind.GIVE_BACK, "Give back all VRAM")),
)


class GovernorMenu(QMenu):
    chosen = Signal(object)
    """ViewAction"""

    def __init__(self, parent: QMenu) -> None:
        super().__init__(parent)
        self.cause = self.addAction("")
        self.cause.setEnabled(False)
        self.trouble = self.addAction("")
        self.trouble.setEnabled(False)
        self._before_modes = self.addSeparator()
        self.modes: dict[Mode, QAction] = {}
        group = QActionGroup(self)
        for mode, action in _MODES:
            entry = self._entry(action)
            entry.setCheckable(True)
            group.addAction(entry)
            self.addAction(entry)
            self.modes[mode] = entry
        self.offered: list[QAction] = []
        """What can be done about what is so now."""
        self.show_view(GovernorView())

    def show_view(self, view: GovernorView) -> None:
        self.setTitle(view.title)
        self.cause.setText(view.cause)
        self.trouble.setText(view.trouble)
        self.trouble.setVisible(bool(view.trouble))
        self.modes[view.mode].setChecked(True)
        if [entry.data() for entry in self.offered] == list(view.actions):
            return  # an open menu stays as it is
        for entry in self.offered:
            self.removeAction(entry)
            entry.deleteLater()
        self.offered = [self._entry(action) for action in view.actions]
        self.insertActions(self._before_modes, self.offered)

    def _entry(self, action: ViewAction) -> QAction:
        entry = QAction(action.label, self)
        entry.setData(action)
        entry.triggered.connect(lambda _=False: self.chosen.emit(action))
        return entry
