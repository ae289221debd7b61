"""Names at the left, what they come to at the right."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QGridLayout, QWidget

from app.ui.widgets.basics import label


class FigureTable(QWidget):
    def __init__(self, lines: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        grid = QGridLayout(self)
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setHorizontalSpacing(24)
        grid.setVerticalSpacing(4)
        grid.setColumnStretch(1, 1)
        for at, (name, words) in enumerate(lines):
            what = label(name, "muted")
            figure = label(words, wrap=True)
            figure.setAccessibleName(name)
            figure.setAccessibleDescription(words)
            grid.addWidget(what, at, 0, Qt.AlignmentFlag.AlignTop)
            grid.addWidget(figure, at, 1)
