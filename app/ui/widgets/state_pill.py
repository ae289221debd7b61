"""The engine's state in a word, with its colour."""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QFont, QFontMetrics, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.core.supervisor import Phase
from app.ui import theme

WORDS = {
    Phase.STOPPED: ("Stopped", "muted"),
    Phase.STARTING: ("Starting", "warn"),
    Phase.LOADING: ("Loading", "warn"),
    Phase.READY: ("Ready", "good"),
    Phase.RESTARTING: ("Restarting", "warn"),
    Phase.FAILED: ("Failed", "bad"),
    Phase.SILENT: ("Not responding", "bad"),
    Phase.BACKING_OFF: ("Crashed, restarting", "bad"),
    Phase.GAVE_UP: ("Cannot run", "bad"),
    Phase.STOPPING: ("Stopping", "warn"),
}


class StatePill(QWidget):
    def __init__(self) -> None:
        super().__init__()
        self._text, self._colour = WORDS[Phase.STOPPED]
        self.setAccessibleName("Engine state")
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        self.show_phase(Phase.STOPPED)

    @property
    def text(self) -> str:
        return self._text

    def show_phase(self, phase: Phase) -> None:
        self._text, self._colour = WORDS[phase]
        self.setAccessibleDescription(self._text)
        self.updateGeometry()
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(QFontMetrics(self._font()).horizontalAdvance(self._text) + 38, 26)

    def paintEvent(self, _: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        box = QRectF(self.rect())
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(theme.colour(self._colour, 34))
        painter.drawRoundedRect(box, box.height() / 2, box.height() / 2)
        painter.setBrush(theme.colour(self._colour))
        painter.drawEllipse(QRectF(11, box.height() / 2 - 4, 8, 8))
        painter.setPen(theme.colour(self._colour))
        painter.setFont(self._font())
        align = Qt.AlignmentFlag.AlignVCenter
        painter.drawText(box.adjusted(26, 0, 0, 0), align, self._text)
        painter.end()

    def _font(self) -> QFont:
        font = QFont(self.font())
        font.setPixelSize(13)
        font.setWeight(QFont.Weight.DemiBold)
        return font
