"""A live number with its unit on one line, and below it what it is."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QPointF, QSize
from PySide6.QtGui import QFont, QFontMetricsF, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.ui import theme

_GAP = 6
_NONE = "–"


class Figure(QWidget):
    def __init__(self, name: str, unit: str = "", pixels: int = 22, colour: str = "accent") -> None:
        """`colour` is that of its curve, where it has one."""
        super().__init__()
        self.colour = colour
        self._name = name
        self._unit = unit
        self._pixels = pixels
        self._value = _NONE
        self._size = QSize()
        self.setAccessibleName(name)
        self.setSizePolicy(QSizePolicy.Policy.Minimum, QSizePolicy.Policy.Fixed)
        self.show_value(_NONE)

    @property
    def text(self) -> str:
        return self._value

    def show_value(self, value: str, unit: str | None = None) -> None:
        shown = (value, self._unit if unit is None else unit)
        if shown == (self._value, self._unit) and self.accessibleDescription():
            return
        self._value, self._unit = shown
        self.setAccessibleDescription(f"{value} {self._shown_unit()}".strip())
        self._measure()
        self.update()

    def sizeHint(self) -> QSize:
        return self._size

    def minimumSizeHint(self) -> QSize:
        return self.sizeHint()

    def paintEvent(self, _: QPaintEvent) -> None:
        painter = QPainter(self)
        numbers = QFontMetricsF(self._number_font())
        base = numbers.ascent()
        painter.setFont(self._number_font())
        painter.setPen(theme.colour("muted" if self._value == _NONE else "text"))
        painter.drawText(QPointF(0, base), self._value)
        painter.setPen(theme.colour("muted"))
        painter.setFont(self._unit_font())
        right = numbers.horizontalAdvance(self._value) + _GAP
        painter.drawText(QPointF(right, base), self._shown_unit())
        painter.setFont(self._name_font())
        painter.drawText(QPointF(0, base + 4 + self._name_metrics().ascent()), self._name)
        if self.hasFocus():  # a frame would lie on the words, which begin at the edge
            painter.fillRect(0, self.height() - 2, self.width(), 2, theme.colour("accent"))
        painter.end()

    def _shown_unit(self) -> str:
        return "" if self._value == _NONE else self._unit

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() in (QEvent.Type.FontChange, QEvent.Type.StyleChange):
            self._measure()

    def _measure(self) -> None:
        """Once a change of words: layouts ask far more often."""
        numbers = QFontMetricsF(self._number_font())
        number = numbers.horizontalAdvance(self._value)
        unit = QFontMetricsF(self._unit_font()).horizontalAdvance(self._unit)
        names = self._name_metrics()
        width = max(number + _GAP + unit, names.horizontalAdvance(self._name))
        size = QSize(round(width) + 2, round(numbers.ascent() + names.height() + 4) + 4)
        if size != self._size:
            self._size = size
            self.updateGeometry()

    def _number_font(self) -> QFont:
        return theme.figures(self.font(), self._pixels)

    def _unit_font(self) -> QFont:
        font = QFont(self.font())
        font.setPixelSize(13)
        return font

    def _name_font(self) -> QFont:
        font = QFont(self.font())
        font.setPixelSize(12)
        return font

    def _name_metrics(self) -> QFontMetricsF:
        return QFontMetricsF(self._name_font())
