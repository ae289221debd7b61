"""Residency as a picture: a row a layer, a column an expert, or a few of them."""

from __future__ import annotations

import math

from PySide6.QtCore import QEvent, QRect, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QFontMetricsF,
    QImage,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QResizeEvent,
)
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.core.residency_view import ResidencyView
from app.ui import theme
from app.ui.accessible import announce

_LEAST_COLUMN = 2
"""Pixels; where experts had less, several share a column."""
_GRID_FROM = 5
"""Cells of so many pixels each way have gaps between them."""
_ROW = 18
_TALL_ROW = 26
"""Where the card beside is taller."""
_MOST_HEIGHT = 288
_LABELS = 34


class HeatMap(QWidget):
    """The pointer or the arrow keys choose a layer, which is told in words."""

    focused = Signal(str)
    """What is chosen, in words; empty where nothing is."""

    def __init__(self) -> None:
        super().__init__()
        self._view = ResidencyView()
        self._whole = self._picture = QImage()
        self._row = -1
        self._bin = -1
        self.setAccessibleName("Residency by layer")
        self.setMouseTracking(True)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        self.show_residency(ResidencyView())

    @property
    def bins(self) -> int:
        """Columns of the picture."""
        room = max(1, self._area().width() // _LEAST_COLUMN)
        return max(1, min(self._view.experts, room))

    @property
    def words(self) -> str:
        """The chosen layer, and the expert under the pointer."""
        if self._row < 0:
            return ""
        words = self._view.describe_row(self._row)
        if self._bin < 0:
            return words
        return f"{words} {self._view.describe_bin(self._row, self._bin, self.bins)}"

    def show_residency(self, view: ResidencyView) -> None:
        changed = (view.experts, view.layers) != (self._view.experts, self._view.layers)
        self._view = view
        if changed:
            self._row = self._bin = -1
            rows = max(1, len(view.layers))
            least = rows * max(1, min(_ROW, _MOST_HEIGHT // rows))
            self.setMinimumHeight(least)
            self.setMaximumHeight(max(least, min(rows * _TALL_ROW, _MOST_HEIGHT)))
            self.updateGeometry()
        self._make_picture()
        self._tell()
        self.update()

    def choose(self, row: int, at: int = -1) -> None:
        """Choose a layer by its row, and one of its columns."""
        if (row, at) != (self._row, self._bin):
            self._row, self._bin = row, at
            self._tell()
            self.update()

    def sizeHint(self) -> QSize:
        return QSize(320, self.minimumHeight())

    def minimumSizeHint(self) -> QSize:
        return QSize(160, self.minimumHeight())

    # --- choosing ---

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        area, where = self._area(), event.position()
        rows = len(self._view.layers)
        inside = rows and area.contains(where.toPoint())
        if not inside:
            self.choose(-1)
            return
        row = int((where.y() - area.top()) * rows / area.height())
        at = int((where.x() - area.left()) * self.bins / area.width())
        self.choose(min(row, rows - 1), min(at, self.bins - 1))

    def leaveEvent(self, event: QEvent) -> None:
        self.choose(-1)
        super().leaveEvent(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        last = len(self._view.layers) - 1
        rows = {
            Qt.Key.Key_Up: max(0, self._row - 1),
            Qt.Key.Key_Down: min(last, self._row + 1),
            Qt.Key.Key_Home: 0,
            Qt.Key.Key_End: last,
        }
        if last >= 0 and event.key() in rows:
            self.choose(rows[Qt.Key(event.key())])
            announce(self, self.words)
        else:
            super().keyPressEvent(event)

    def _tell(self) -> None:
        words = self.words
        self.setAccessibleDescription(words or self._view.describe())
        self.focused.emit(words)

    # --- painting ---

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.StyleChange:
            self._make_picture()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if self._picture.width() != self.bins:
            self._bin = -1
            self._fit_picture()

    def _make_picture(self) -> None:
        """A pixel an expert."""
        experts, rows = self._view.experts, len(self._view.layers)
        if rows:
            kind = QImage.Format.Format_Indexed8
            made = QImage(self._view.picture(), experts, rows, experts, kind)
            made.setColorTable(_ramp(theme.colour("track"), theme.colour("experts")))
            # A copy in any case: the bytes do not outlive this.
            self._whole = made.convertToFormat(QImage.Format.Format_RGB32)
        else:
            self._whole = QImage()
        self._fit_picture()

    def _fit_picture(self) -> None:
        """Experts that share a column get their mean."""
        self._picture = self._whole
        if self.bins < self._whole.width():
            smooth = Qt.TransformationMode.SmoothTransformation
            self._picture = self._whole.scaled(self.bins, self._whole.height(), mode=smooth)

    def paintEvent(self, _: QPaintEvent) -> None:
        painter = QPainter(self)
        area = self._area()
        rows = len(self._view.layers)
        if rows:
            painter.drawImage(area, self._picture)
            height, width = area.height() / rows, area.width() / self._picture.width()
            self._paint_gaps(painter, area, width, height)
            self._paint_labels(painter, area, height)
            if self._row >= 0:
                top = area.top() + self._row * height
                box = QRectF(area.left(), top, area.width(), height)
                painter.setPen(QPen(theme.colour("text"), 1.5))
                painter.drawRect(box.adjusted(-0.5, -0.5, 0.5, 0.5))
        if self.hasFocus():
            theme.paint_focus(painter, self.rect())
        painter.end()

    def _paint_gaps(self, painter: QPainter, area: QRect, width: float, height: float) -> None:
        """On the first of the screen's pixels that are a cell's, where the picture has its edge."""
        ratio = self.devicePixelRatioF()
        thick, colour = max(1, round(ratio)) / ratio, theme.colour("surface")

        def edge(at: int, size: float) -> float:
            return math.ceil(at * size * ratio - 0.5) / ratio

        if height >= _GRID_FROM:
            for row in range(1, len(self._view.layers)):
                y = area.top() + edge(row, height)
                painter.fillRect(QRectF(area.left(), y, area.width(), thick), colour)
        if width >= _GRID_FROM:
            for at in range(1, self._picture.width()):
                x = area.left() + edge(at, width)
                painter.fillRect(QRectF(x, area.top(), thick, area.height()), colour)

    def _paint_labels(self, painter: QPainter, area: QRect, height: float) -> None:
        font = theme.figures(self.font(), 11, self.font().weight())
        painter.setFont(font)
        painter.setPen(theme.colour("muted"))
        line = QFontMetricsF(font).height()
        every = max(1, -(-int(line + 2) // max(1, int(height))))
        for row in range(0, len(self._view.layers), every):
            middle = area.top() + (row + 0.5) * height
            top = min(max(0.0, middle - line / 2), self.height() - line)
            box = QRectF(0, top, _LABELS - 8, line)
            align = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
            painter.drawText(box, align, str(self._view.layers[row]))

    def _area(self) -> QRect:
        return self.rect().adjusted(_LABELS, 1, -2, -1)


def _ramp(low: QColor, high: QColor) -> list[int]:
    """Colours of 0 and 255; there is nothing between."""
    return [low.rgb(), *[high.rgb()] * 255]
