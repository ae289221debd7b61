"""Why the engine has less VRAM than it could use, and what can be done about it."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QPushButton, QVBoxLayout

from app.core.governor.arbiter import State
from app.core.governor.policy import Mode
from app.core.governor.view import ActionKind, GovernorView, ViewAction
from app.ui.widgets.basics import button, column, label, row

_HELD_BACK = (State.GAME, State.SQUEEZED, State.RECOVERING, State.PAUSED, State.GIVEN_BACK)
_AUTO = ViewAction(ActionKind.AUTO, "Automatic")


class GovernorCard(QFrame):
    """Hidden while nothing is held back."""

    chosen = Signal(object)
    """ViewAction"""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("governor")
        self.setAccessibleName("VRAM for other programs")
        self._title = label("", "title")
        self._cause = label("", wrap=True)
        self._trouble = label("", "muted", wrap=True)
        self._actions: tuple[ViewAction, ...] = ()
        self._buttons: list[QPushButton] = []
        words = column(4)
        for one in (self._title, self._cause, self._trouble):
            words.addWidget(one)
        self._row = row()
        self._row.addStretch()
        body = QVBoxLayout(self)
        body.setContentsMargins(18, 14, 20, 14)
        top = row(16)
        top.addLayout(words, 1)
        top.addLayout(self._row)
        top.setAlignment(self._row, Qt.AlignmentFlag.AlignVCenter)
        body.addLayout(top)
        self.show_view(GovernorView())

    @property
    def buttons(self) -> list[QPushButton]:
        return self._buttons

    def show_view(self, view: GovernorView) -> None:
        self._title.setText(view.title.upper())
        self._cause.setText(view.cause)
        self._trouble.setText(view.trouble)
        self._trouble.setVisible(bool(view.trouble))
        self.setAccessibleDescription(f"{view.title}. {view.cause} {view.trouble}".strip())
        actions = view.actions if view.mode is Mode.AUTO else (*view.actions, _AUTO)
        if actions != self._actions:  # a button under the pointer stays
            self._offer(actions)
        self.setVisible(view.state in _HELD_BACK or bool(view.trouble))

    def _offer(self, actions: tuple[ViewAction, ...]) -> None:
        self._actions = actions
        for old in self._buttons:
            self._row.removeWidget(old)
            old.deleteLater()
        self._buttons = []
        for action in actions:
            made = button(action.label)
            made.clicked.connect(lambda _=False, action=action: self.chosen.emit(action))
            self._row.addWidget(made)
            self._buttons.append(made)
