"""A live figure's recent past as a line over a soft area."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QLinearGradient, QPainter, QPainterPath, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.ui import theme


class Sparkline(QWidget):
    """Newest sample at the right edge. The scale grows with the highest sample in view."""

    def __init__(
        self, name: str, describe: Callable[[float], str], colour: str = "accent", top: float = 0.0
    ) -> None:
        """`describe` puts a value in words; `top` fixes the scale's upper end (0: by the data)."""
        super().__init__()
        self._describe = describe
        self._colour = colour
        self._top = top
        self._values: tuple[float, ...] = ()
        self._length = 2
        self.setAccessibleName(name)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self.show_values((), 60)

    def show_values(self, values: Sequence[float], length: int) -> None:
        """`length` samples fill the width."""
        self._values = tuple(values)
        self._length = max(2, length)
        words = "no samples yet"
        if self._values:
            now, high = self._values[-1], max(self._values)
            words = f"now {self._describe(now)}, highest {self._describe(high)}"
        self.setAccessibleDescription(words)
        self.setToolTip(f"{self.accessibleName()}: {words}")
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(240, 72)

    def minimumSizeHint(self) -> QSize:
        return QSize(120, 48)

    def paintEvent(self, _: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        area = QRectF(self.rect()).adjusted(1, 6, -5, -2)
        self._paint_grid(painter, area)
        points = self._points(area)
        if len(points) > 1:
            self._paint_line(painter, area, points)
        painter.end()

    def _points(self, area: QRectF) -> list[QPointF]:
        scale = self._top or 1.15 * max(self._values, default=0.0) or 1.0
        step = area.width() / (self._length - 1)
        first = self._length - len(self._values)
        return [
            QPointF(
                area.left() + (first + at) * step,
                area.bottom() - min(1.0, max(0.0, value / scale)) * area.height(),
            )
            for at, value in enumerate(self._values)
        ]

    def _paint_grid(self, painter: QPainter, area: QRectF) -> None:
        painter.setPen(QPen(theme.colour("border"), 1, Qt.PenStyle.DotLine))
        for share in (0.0, 0.5):
            y = round(area.top() + share * area.height()) + 0.5
            painter.drawLine(QPointF(area.left(), y), QPointF(area.right(), y))
        painter.setPen(QPen(theme.colour("border"), 1))
        base = round(area.bottom()) + 0.5
        painter.drawLine(QPointF(area.left(), base), QPointF(area.right(), base))

    def _paint_line(self, painter: QPainter, area: QRectF, points: list[QPointF]) -> None:
        line = QPainterPath(points[0])
        for before, point in pairwise(points):
            middle = (before.x() + point.x()) / 2
            line.cubicTo(QPointF(middle, before.y()), QPointF(middle, point.y()), point)
        under = QPainterPath(line)
        under.lineTo(QPointF(points[-1].x(), area.bottom()))
        under.lineTo(QPointF(points[0].x(), area.bottom()))
        under.closeSubpath()
        fade = QLinearGradient(area.topLeft(), area.bottomLeft())
        fade.setColorAt(0, theme.colour(self._colour, 90))
        fade.setColorAt(1, theme.colour(self._colour, 8))
        painter.fillPath(under, fade)
        pen = QPen(theme.colour(self._colour), 2)
        pen.setJoinStyle(Qt.PenJoinStyle.RoundJoin)
        painter.strokePath(line, pen)
        painter.setPen(QPen(theme.colour("surface"), 2))
        painter.setBrush(theme.colour(self._colour))
        painter.drawEllipse(points[-1], 4, 4)
