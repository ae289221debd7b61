"""A file that goes, or went, with a message."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame

from app.core import units
from app.core.attachments import Attachment
from app.ui.widgets.basics import IconButton, label, row

_WIDEST = 220


class FileChip(QFrame):
    removed = Signal()

    def __init__(self, file: Attachment, *, removable: bool = False) -> None:
        super().__init__()
        self.setObjectName("fileChip")
        self.file = file
        size = units.size(len(file.text.encode()))
        name = label("")
        name.setText(
            name.fontMetrics().elidedText(file.name, Qt.TextElideMode.ElideMiddle, _WIDEST)
        )
        self.setToolTip(file.name)
        self.setAccessibleName(f"Attached: {file.name}, {size}")
        line = row(6)
        line.setContentsMargins(10, 3, 3 if removable else 10, 3)
        line.addWidget(name)
        line.addWidget(label(size, "hint"))
        if removable:
            remove = IconButton("close", f"Remove {file.name}", pixels=12)
            remove.clicked.connect(self.removed)
            line.addWidget(remove)
        self.setLayout(line)
