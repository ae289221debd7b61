"""The one question at the first close: what shall the window's X do from now on?"""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QDialog, QLabel, QPushButton, QWidget

from app.core.settings import OnClose
from app.ui import icons
from app.ui.widgets.basics import button, column, label, row


class CloseDialog(QDialog):
    """`choice` is hide or quit once accepted; Cancel and Escape leave the window open, and it
    asks again.
    """

    def __init__(self, parent: QWidget, *, tray: bool, engine_running: bool) -> None:
        super().__init__(parent)
        self.setWindowTitle("Close Headrace")
        self.choice: OnClose = "ask"
        self.cancel = button("Cancel")
        self.cancel.clicked.connect(self.reject)
        self.keep = self._choice_button("Keep running" if tray else "Minimise", "hide")
        self.quit = self._choice_button("Quit", "quit")
        self.keep.setProperty("primary", True)
        self.keep.setDefault(True)
        mark = QLabel()
        mark.setPixmap(icons.app_icon().pixmap(44, 44))
        self.words = label(_words(tray=tray, engine_running=engine_running), wrap=True)
        hint = label("Headrace remembers this. Settings can change it.", "hint", wrap=True)
        text = column(8)
        text.addWidget(label("What shall closing the window do?", "section"))
        text.addWidget(self.words)
        text.addWidget(hint)
        top = row(16)
        top.addWidget(mark, 0, Qt.AlignmentFlag.AlignTop)
        top.addLayout(text, 1)
        buttons = row(8)
        buttons.addWidget(self.cancel)
        buttons.addStretch()
        buttons.addWidget(self.quit)
        buttons.addWidget(self.keep)
        body = column(20)
        body.setContentsMargins(24, 22, 24, 18)
        body.addLayout(top)
        body.addLayout(buttons)
        self.setLayout(body)
        self.setFixedWidth(460)

    def _choice_button(self, text: str, choice: OnClose) -> QPushButton:
        def choose() -> None:
            self.choice = choice
            self.accept()

        made = button(text)
        made.clicked.connect(choose)
        return made


def _words(*, tray: bool, engine_running: bool) -> str:
    quit_words = "Quit stops the engine and frees its memory."
    if not engine_running:
        quit_words = "Quit ends Headrace."
    if tray:
        return (
            "Keep running hides the window in the tray; the engine goes on serving your agents. "
            f"{quit_words}"
        )
    return (
        "This desktop has no tray to hide in. Minimise keeps the window in the task list and the "
        f"engine running; starting Headrace again brings it back, too. {quit_words}"
    )
