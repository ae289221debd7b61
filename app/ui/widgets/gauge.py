"""A share as a ring with the figure in its middle."""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QFont, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QWidget

from app.core import units
from app.ui import theme

_START = 225 * 16
_SWEEP = -270 * 16


class Gauge(QWidget):
    def __init__(self, name: str, label: str, colour: str = "experts", side: int = 132) -> None:
        """`name` is for screen readers; the shorter `label` stands between the ring's ends."""
        super().__init__()
        self._label = label
        self._colour = colour
        self._side = side
        self._share = 0.0
        self._figure = "–"
        self._caption = ""
        self.setAccessibleName(name)
        self.setFixedSize(side, side)
        self.show_share(None, "")

    def show_share(self, share: float | None, caption: str) -> None:
        """`share` from 0 to 1, or None where there is nothing to show; `caption` stands below."""
        self._share = min(1.0, max(0.0, share or 0.0))
        self._figure = "–" if share is None else units.percent(self._share)
        self._caption = caption
        self.setAccessibleDescription(f"{self._figure} {caption}".strip())
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(self._side, self._side)

    def paintEvent(self, _: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        ring = QRectF(self.rect()).adjusted(7, 7, -7, -7)
        pen = QPen(theme.colour("track"), 9)
        pen.setCapStyle(Qt.PenCapStyle.RoundCap)
        painter.setPen(pen)
        painter.drawArc(ring, _START, _SWEEP)
        if self._share > 0:
            pen.setColor(theme.colour(self._colour))
            painter.setPen(pen)
            painter.drawArc(ring, _START, round(_SWEEP * self._share))
        painter.setPen(theme.colour("text"))
        painter.setFont(theme.figures(self.font(), 22))
        centre = Qt.AlignmentFlag.AlignCenter
        painter.drawText(ring.adjusted(0, -10, 0, -10), centre, self._figure)
        painter.setFont(theme.figures(self.font(), 11, QFont.Weight.Normal))
        painter.setPen(theme.colour("muted"))
        painter.drawText(ring.adjusted(0, 24, 0, 24), centre, self._caption)
        below = Qt.AlignmentFlag.AlignHCenter | Qt.AlignmentFlag.AlignBottom
        painter.drawText(QRectF(self.rect()).adjusted(0, 0, 0, -4), below, self._label)
        painter.end()
