"""A rate of now against the highest that was measured: a figure with a bar below it."""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.core import units
from app.ui import theme
from app.ui.widgets.basics import column, label, split_unit
from app.ui.widgets.figure import Figure


class _Bar(QWidget):
    def __init__(self, name: str, colour: str) -> None:
        super().__init__()
        self._colour = colour
        self._share = 0.0
        self.setAccessibleName(name)
        self.setFixedHeight(6)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def show_share(self, share: float, words: str) -> None:
        self.setAccessibleDescription(words)
        if share != self._share:
            self._share = share
            self.update()

    def sizeHint(self) -> QSize:
        return QSize(120, 6)

    def paintEvent(self, _: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(theme.colour("track"))
        painter.drawRoundedRect(QRectF(self.rect()), 3, 3)
        if self._share > 0:
            width = max(6.0, self.width() * self._share)
            painter.setBrush(theme.colour(self._colour))
            painter.drawRoundedRect(QRectF(0, 0, width, 6), 3, 3)
        painter.end()


class RateMeter(QWidget):
    def __init__(self, name: str, colour: str) -> None:
        super().__init__()
        self.figure = Figure(name, colour=colour)
        self.bar = _Bar(f"{name}, share of the highest measured", colour)
        self._note = label("", "hint")
        body = column(6)
        body.addWidget(self.figure)
        body.addWidget(self.bar)
        body.addWidget(self._note)
        self.setLayout(body)
        self.show_rate(None, 0)

    def show_rate(self, rate: float | None, ceiling: float) -> None:
        """Bytes a second; None where there is nothing to tell, a ceiling of 0 where none is
        known."""
        if rate is None:
            self.figure.show_value("–", "")
        else:
            self.figure.show_value(*split_unit(units.rate(rate)))
        known = rate is not None and ceiling > 0
        share = min(1.0, (rate or 0.0) / ceiling) if known else 0.0
        most = f"{units.rate(ceiling)}, the highest measured" if known else "nothing measured yet"
        self.bar.show_share(share, f"{units.percent(share)} of {most}" if known else most)
        self._note.setText(f"of {most}" if known else "Nothing measured yet")
