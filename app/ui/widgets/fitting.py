"""Layouts that follow the width they get: figures in as many columns as fit, cards in a row or a
column."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QGridLayout, QWidget


class FittingGrid(QWidget):
    """Widgets in equal columns, each at least `column` wide; rows as many as that takes."""

    def __init__(
        self,
        widgets: Sequence[QWidget],
        column: int = 120,
        gaps: tuple[int, int] = (20, 14),
        choices: Sequence[int] = (),
    ) -> None:
        """`gaps` are the distances between columns and between rows; `choices` the numbers of
        columns that may be taken, falling, where not every number may."""
        super().__init__()
        self._widgets = list(widgets)
        self._column = column
        self._choices = choices or range(len(self._widgets), 0, -1)
        self._columns = 0
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(gaps[0])
        self._grid.setVerticalSpacing(gaps[1])
        self._fit()

    def minimumSizeHint(self) -> QSize:
        widest = max((widget.minimumSizeHint().width() for widget in self._widgets), default=0)
        return QSize(widest, self._grid.minimumSize().height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def _fit(self) -> None:
        gap = self._grid.horizontalSpacing()
        most = (self.width() + gap) // (self._column + gap)
        fitting = next((choice for choice in self._choices if choice <= most), 1)
        rows = -(-len(self._widgets) // fitting)
        columns = -(-len(self._widgets) // rows)  # rows of nearly one length
        if columns == self._columns:
            return
        for at in range(max(columns, self._columns)):
            self._grid.setColumnStretch(at, 1 if at < columns else 0)
        self._columns = columns
        for at, widget in enumerate(self._widgets):
            self._grid.addWidget(widget, at // columns, at % columns, Qt.AlignmentFlag.AlignTop)
        self.updateGeometry()


class SideBySide(QWidget):
    """Widgets in a row, or in a column where the row would be narrower than `turn`."""

    def __init__(
        self, widgets: Sequence[QWidget], turn: int, gap: int, stretch: Sequence[int] = ()
    ) -> None:
        super().__init__()
        self._turn = turn
        self._widgets = list(widgets)
        self._box = QBoxLayout(QBoxLayout.Direction.LeftToRight, self)
        self._box.setContentsMargins(0, 0, 0, 0)
        self._box.setSpacing(gap)
        for at, widget in enumerate(widgets):
            self._box.addWidget(widget, stretch[at] if stretch else 1)

    def minimumSizeHint(self) -> QSize:
        widest = max((widget.minimumSizeHint().width() for widget in self._widgets), default=0)
        return QSize(widest, self._box.minimumSize().height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        wide = event.size().width() >= self._turn
        direction = QBoxLayout.Direction
        wanted = direction.LeftToRight if wide else direction.TopToBottom
        if wanted != self._box.direction():
            self._box.setDirection(wanted)
            self.updateGeometry()
