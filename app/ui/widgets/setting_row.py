"""One setting: its name and what it does at the left, its editor at the right."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtWidgets import QWidget

from app.ui.widgets.basics import column, label, row


class SettingRow(QWidget):
    def __init__(self, name: str, hint: str, editor: QWidget) -> None:
        super().__init__()
        self.editor = editor
        words = column(2)
        title = label(name)
        title.setBuddy(editor)
        words.addWidget(title)
        if hint:
            words.addWidget(label(hint, "hint", wrap=True))
        editor.setAccessibleName(name)
        editor.setAccessibleDescription(hint)
        editor.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        editor.installEventFilter(self)
        self._editors = row()
        self._editors.addWidget(editor, 1)
        self._problem = label("", "fieldProblem", wrap=True)
        self._problem.hide()
        self._note = label("", "hint", wrap=True)
        self._note.hide()
        right = column(4)
        right.addLayout(self._editors)
        right.addWidget(self._problem)
        right.addWidget(self._note)
        body = row(24)
        body.setContentsMargins(0, 8, 0, 8)
        body.addLayout(words, 4)
        body.addLayout(right, 5)
        body.setAlignment(words, Qt.AlignmentFlag.AlignVCenter)
        self.setLayout(body)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Scrolling the page must not change the setting that passes under the pointer."""
        wheel = event.type() == QEvent.Type.Wheel
        if wheel and isinstance(watched, QWidget) and not watched.hasFocus():
            event.ignore()
            return True
        return super().eventFilter(watched, event)

    def add(self, *more: QWidget) -> None:
        """Further widgets at the right of the editor."""
        for widget in more:
            self._editors.addWidget(widget)

    @property
    def note(self) -> str:
        return self._note.text()

    def show_note(self, sentence: str) -> None:
        """How things are now, where that is not what the editor says."""
        self._note.setText(sentence)
        self._note.setVisible(bool(sentence))

    @property
    def problem(self) -> str:
        return self._problem.text()

    def show_problem(self, sentence: str) -> None:
        self._problem.setText(sentence)
        self._problem.setVisible(bool(sentence))
