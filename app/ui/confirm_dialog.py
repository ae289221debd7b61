"""A question before what cannot be undone. It opens without holding up anything."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QDialog, QWidget

from app.ui.widgets.basics import button, column, label, row


class ConfirmDialog(QDialog):
    def __init__(
        self, parent: QWidget, title: str, words: str, action: str, then: Callable[[], None]
    ) -> None:
        super().__init__(parent)
        self.setWindowTitle(title)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.cancel = button("Cancel")
        self.cancel.clicked.connect(self.reject)
        self.cancel.setDefault(True)
        self.confirm = button(action, primary=True)
        self.confirm.clicked.connect(self.accept)
        self.accepted.connect(then)
        self.words = label(words, wrap=True)
        buttons = row(8)
        buttons.addStretch()
        buttons.addWidget(self.cancel)
        buttons.addWidget(self.confirm)
        body = column(14)
        body.setContentsMargins(24, 22, 24, 18)
        body.addWidget(label(title, "section", wrap=True))
        body.addWidget(self.words)
        body.addSpacing(6)
        body.addLayout(buttons)
        self.setLayout(body)
        self.setFixedWidth(460)
