"""Who holds how much of one memory: a bar of coloured parts, and its legend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QEvent, QRectF, QSize, Qt
from PySide6.QtGui import QHelpEvent, QPainter, QPainterPath, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from app.core import units
from app.ui import theme


@dataclass(frozen=True)
class Part:
    label: str
    colour: str
    """A colour of the scheme by its field's name."""
    amount: float


class StackedBar(QWidget):
    """Parts from left to right; what they leave of the total is free."""

    def __init__(self, name: str, height: int = 18) -> None:
        super().__init__()
        self._height = height
        self._parts: tuple[Part, ...] = ()
        self._total = 0.0
        self.setAccessibleName(name)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.show_parts((), 0)

    @property
    def parts(self) -> tuple[Part, ...]:
        return self._parts

    def show_parts(self, parts: Sequence[Part], total: float) -> None:
        """Amounts and total in bytes. A total below the sum of the parts is raised to it."""
        self._parts = tuple(part for part in parts if part.amount > 0)
        self._total = max(total, sum(part.amount for part in self._parts))
        words = [f"{part.label} {units.size(part.amount)}" for part in self._parts]
        if self._total:
            words.append(f"of {units.size(self._total)}")
        self.setAccessibleDescription(", ".join(words) or "nothing in use")
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(240, self._height)

    def minimumSizeHint(self) -> QSize:
        return QSize(60, self._height)

    def event(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.ToolTip and isinstance(event, QHelpEvent):
            QToolTip.showText(event.globalPos(), self._words_at(event.pos().x()), self)
            return True
        return super().event(event)

    def paintEvent(self, _: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        box = QRectF(self.rect())
        shape = QPainterPath()
        radius = min(5.0, box.height() / 2)
        shape.addRoundedRect(box, radius, radius)
        painter.setClipPath(shape)
        painter.fillRect(box, theme.colour("track"))
        painter.setPen(Qt.PenStyle.NoPen)
        for part, left, right in self._spans():
            span = QRectF(left, 0, max(2.0, right - left - 1.5), box.height())
            painter.fillRect(span, theme.colour(part.colour))
        painter.end()

    def _spans(self) -> list[tuple[Part, float, float]]:
        if not self._total:
            return []
        spans: list[tuple[Part, float, float]] = []
        left = 0.0
        for part in self._parts:
            right = left + self.width() * part.amount / self._total
            spans.append((part, left, right))
            left = right
        return spans

    def _words_at(self, x: float) -> str:
        for part, left, right in self._spans():
            if left <= x < right:
                return f"{part.label}: {units.size(part.amount)}"
        free = self._total - sum(part.amount for part in self._parts)
        return f"Free: {units.size(free)}" if self._total else ""
