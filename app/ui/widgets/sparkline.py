"""A live figure's recent past as a line over a soft area, with the value at the cursor."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import pairwise

from PySide6.QtCore import QEvent, QLineF, QPointF, QRectF, QSize, Qt
from PySide6.QtGui import (
    QEnterEvent,
    QFocusEvent,
    QFontMetricsF,
    QKeyEvent,
    QLinearGradient,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QPolygonF,
)
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.core import units
from app.core.stats_history import Curve
from app.ui import theme
from app.ui.accessible import announce

_KEYS = {Qt.Key.Key_Left: -1, Qt.Key.Key_Right: 1, Qt.Key.Key_PageUp: -10, Qt.Key.Key_PageDown: 10}

_MOST_POINTS = 160
"""Of a line: more of them nobody sees, but all are computed at each repaint."""
_SCALE_FROM = 60
"""Pixels of height with room for words beside the line."""


class Sparkline(QWidget):
    """Newest sample at the right edge. The scale grows with the highest sample in view.

    The pointer, or the arrow keys, choose a sample whose value and age are shown.
    """

    def __init__(
        self, name: str, describe: Callable[[float], str], colour: str = "accent", top: float = 0.0
    ) -> None:
        """`describe` puts a value in words; `top` fixes the scale's upper end (0: by the data)."""
        super().__init__()
        self._describe = describe
        self._colour = colour
        self._top = top
        self._times: Sequence[float] = ()
        self._values: Sequence[float] = ()
        self._line: list[tuple[float, float]] = []
        """Time and value of the points that are drawn."""
        self._span = self._scale = 1.0
        self._cursor: float | None = None
        """Where in the width, 0 to 1."""
        self.setAccessibleName(name)
        self.setMouseTracking(True)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self.show_values((), 60)

    def show_values(self, values: Sequence[float], length: int) -> None:
        """Samples of one a second, of which `length` fill the width."""
        self.show_curve(Curve(tuple(range(len(values))), tuple(values)), max(2, length) - 1)

    def show_curve(self, curve: Curve, span: float) -> None:
        """`span`: seconds that fill the width, up to the newest sample."""
        self._times, self._values, self._span = curve.times, curve.values, span
        self._line = _thinned(curve)
        known = [value for value in self._values if not math.isnan(value)]
        self._scale = self._top or units.round_up(1.05 * max(known, default=0.0)) or 1.0
        words = "no samples yet"
        if known:
            words = f"now {self._describe(known[-1])}, highest {self._describe(max(known))}"
        self.setAccessibleDescription(words)
        self.update()

    @property
    def pointed_at(self) -> str:
        """The sample at the cursor in words; empty where there is no cursor."""
        at = self._at_cursor()
        if at is None:
            return ""
        age = round(self._times[-1] - self._times[at])
        when = f"{units.uptime(age)} ago" if age else "now"
        return f"{self._describe(self._values[at])}  ·  {when}"

    def point_at(self, share: float | None) -> None:
        """Move the cursor to a share of the width, or away."""
        if share != self._cursor:
            self._cursor = share
            self.update()

    def step(self, by: int) -> None:
        """Move the cursor by so many samples, from the newest at first."""
        if not self._times:
            return
        at = self._at_cursor()
        at = len(self._times) - 1 if at is None else min(max(at + by, 0), len(self._times) - 1)
        self.point_at(self._share(at))

    def sizeHint(self) -> QSize:
        return QSize(240, 72)

    def minimumSizeHint(self) -> QSize:
        return QSize(120, 48)

    # --- the cursor ---

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        self._point_at_x(event.position().x())

    def enterEvent(self, event: QEnterEvent) -> None:
        self._point_at_x(event.position().x())

    def leaveEvent(self, event: QEvent) -> None:
        self.point_at(None)
        super().leaveEvent(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if by := _KEYS.get(Qt.Key(event.key())):
            self.step(by)
            announce(self, self.pointed_at)
        else:
            super().keyPressEvent(event)

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        self.update()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        self.point_at(None)
        super().focusOutEvent(event)
        self.update()

    def _point_at_x(self, x: float) -> None:
        area = self._area()
        self.point_at(min(1.0, max(0.0, (x - area.left()) / max(1.0, area.width()))))

    def _at_cursor(self) -> int | None:
        """The known sample nearest to the cursor."""
        if self._cursor is None or not self._times:
            return None
        when = self._times[-1] - (1 - self._cursor) * self._span
        after = min(bisect_left(self._times, when), len(self._times) - 1)
        before = max(0, after - 1)
        nearer_before = when - self._times[before] < self._times[after] - when
        at = before if nearer_before else after
        return None if math.isnan(self._values[at]) else at

    def _share(self, at: int) -> float:
        return 1 - (self._times[-1] - self._times[at]) / self._span

    # --- painting ---

    def paintEvent(self, _: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        area = self._area()
        self._paint_grid(painter, area)
        for run in self._runs(area):
            self._paint_line(painter, area, run)
        at = self._at_cursor()
        if at is not None:
            self._paint_cursor(painter, area, at)
        elif self._values and not math.isnan(self._values[-1]):
            self._paint_dot(painter, self._point(area, len(self._values) - 1))
        if self.hasFocus():
            theme.paint_focus(painter, self.rect())
        painter.end()

    def _area(self) -> QRectF:
        return QRectF(self.rect()).adjusted(3, 8, -6, -3)

    def _point(self, area: QRectF, at: int) -> QPointF:
        share = min(1.0, max(0.0, self._values[at] / self._scale))
        x = area.left() + max(0.0, self._share(at)) * area.width()
        return QPointF(x, area.bottom() - share * area.height())

    def _runs(self, area: QRectF) -> list[list[QPointF]]:
        """Points of the line, in pieces where values are not known in between."""
        if not self._times:
            return []
        per_second, per_unit = area.width() / self._span, area.height() / self._scale
        left, low = area.right() - self._times[-1] * per_second, area.bottom()
        runs: list[list[QPointF]] = [[]]
        for time, value in self._line:
            if math.isnan(value):
                runs.append([])
            else:
                runs[-1].append(QPointF(left + time * per_second, low - value * per_unit))
        return [run for run in runs if len(run) > 1]

    def _paint_grid(self, painter: QPainter, area: QRectF) -> None:
        painter.setPen(QPen(theme.colour("border"), 1, Qt.PenStyle.DotLine))
        for share in (0.0, 0.5):
            y = round(area.top() + share * area.height()) + 0.5
            painter.drawLine(QPointF(area.left(), y), QPointF(area.right(), y))
        painter.setPen(QPen(theme.colour("border"), 1))
        base = round(area.bottom()) + 0.5
        painter.drawLine(QPointF(area.left(), base), QPointF(area.right(), base))
        if self._times and area.height() > _SCALE_FROM:
            self._paint_scale(painter, area)

    def _paint_scale(self, painter: QPainter, area: QRectF) -> None:
        """What the upper line stands for, and how far back the left edge lies."""
        painter.setFont(theme.figures(self.font(), 11, self.font().weight()))
        painter.setPen(theme.colour("muted"))
        left, flags = area.adjusted(2, 3, -2, -3), Qt.AlignmentFlag
        painter.drawText(left, flags.AlignLeft | flags.AlignTop, self._describe(self._scale))
        ago = f"{units.uptime(round(self._span))} ago"
        painter.drawText(left, flags.AlignLeft | flags.AlignBottom, ago)

    def _paint_line(self, painter: QPainter, area: QRectF, points: list[QPointF]) -> None:
        low = area.bottom()
        under = QPolygonF([QPointF(points[0].x(), low), *points, QPointF(points[-1].x(), low)])
        fade = QLinearGradient(area.topLeft(), area.bottomLeft())
        fade.setColorAt(0, theme.colour(self._colour, 80))
        fade.setColorAt(1, theme.colour(self._colour, 8))
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(fade)
        painter.drawPolygon(under)
        painter.setPen(QPen(theme.colour(self._colour), 2))  # its square ends close the joints
        # One by one they take a quarter of the time of a polyline, whose joints are computed.
        painter.drawLines([QLineF(*two) for two in pairwise(points)])

    def _paint_dot(self, painter: QPainter, point: QPointF) -> None:
        painter.setPen(QPen(theme.colour("surface"), 2))
        painter.setBrush(theme.colour(self._colour))
        painter.drawEllipse(point, 4, 4)

    def _paint_cursor(self, painter: QPainter, area: QRectF, at: int) -> None:
        point = self._point(area, at)
        painter.setPen(QPen(theme.colour("muted"), 1))
        x = round(point.x()) + 0.5
        painter.drawLine(QPointF(x, area.top()), QPointF(x, area.bottom()))
        self._paint_dot(painter, point)
        painter.setFont(theme.figures(self.font(), 12))
        words = self.pointed_at
        width = QFontMetricsF(painter.font()).horizontalAdvance(words) + 16
        left = min(max(area.left(), x - width / 2), area.right() - width)
        high = point.y() < area.top() + 28  # words never lie on their point
        box = QRectF(left, area.bottom() - 24 if high else area.top() - 4, width, 22)
        painter.setPen(QPen(theme.colour("border"), 1))
        painter.setBrush(theme.colour("raised"))
        painter.drawRoundedRect(box, 6, 6)
        painter.setPen(theme.colour("text"))
        painter.drawText(box, Qt.AlignmentFlag.AlignCenter, words)


def _thinned(curve: Curve) -> list[tuple[float, float]]:
    """Samples, or the highest of each few where there are very many.

    Which belong together follows from their times, so that the line moves and does not flicker.
    """
    few = len(curve.times) // _MOST_POINTS + 1
    if few == 1:
        return list(zip(curve.times, curve.values, strict=True))
    line: list[tuple[float, float]] = []
    last = None
    for time, value in zip(curve.times, curve.values, strict=True):
        group = time // few
        if group != last:
            line.append((time, value))
        elif not value <= line[-1][1]:  # one that is no number shows, too
            line[-1] = (line[-1][0], value)
        last = group
    line[-1] = (curve.times[-1], curve.values[-1])
    return line
