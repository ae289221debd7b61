"""What the colours of a stacked bar stand for, with the amounts, in as many columns as fit."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.core import units
from app.ui import theme
from app.ui.widgets.stacked_bar import Part

_ROW = 24
_COLUMN = 190
_GAP = 28


class Legend(QWidget):
    def __init__(self, name: str) -> None:
        super().__init__()
        self._parts: tuple[Part, ...] = ()
        self.setAccessibleName(name)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def show_parts(self, parts: Sequence[Part]) -> None:
        if len(parts) != len(self._parts):
            self._parts = tuple(parts)
            self._fit()
        self._parts = tuple(parts)
        words = ", ".join(f"{part.label} {units.size(part.amount)}" for part in parts)
        self.setAccessibleDescription(words)
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(_COLUMN, self._rows() * _ROW)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def paintEvent(self, _: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        columns = self._columns()
        width = self.width() / columns
        font = self.font()
        font.setPixelSize(13)
        numbers = theme.figures(font, 13, font.weight())
        for at, part in enumerate(self._parts):
            left, top = (at % columns) * width, (at // columns) * _ROW
            gap = 0 if at % columns == columns - 1 else _GAP
            box = QRectF(left, top, width - gap, _ROW)
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(theme.colour(part.colour))
            painter.drawRoundedRect(QRectF(left, top + _ROW / 2 - 5, 10, 10), 3, 3)
            painter.setPen(theme.colour("muted"))
            painter.setFont(font)
            align = Qt.AlignmentFlag.AlignVCenter
            painter.drawText(box.adjusted(18, 0, 0, 0), align, part.label)
            painter.setPen(theme.colour("text"))
            painter.setFont(numbers)
            painter.drawText(
                box,
                align | Qt.AlignmentFlag.AlignRight,
                units.size(part.amount) if part.amount else "–",
            )
        painter.end()

    def _columns(self) -> int:
        return max(1, min(len(self._parts) or 1, self.width() // _COLUMN))

    def _rows(self) -> int:
        return -(-len(self._parts) // self._columns())

    def _fit(self) -> None:
        self.setFixedHeight(max(1, self._rows()) * _ROW)
