"""The recent past of a figure while the pointer or the keyboard is on it."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, QPoint, Qt
from PySide6.QtGui import QKeyEvent, QMouseEvent
from PySide6.QtWidgets import QFrame, QVBoxLayout, QWidget

from app.core import stats_history
from app.core.stats_history import StatsHistory
from app.ui.accessible import announce
from app.ui.widgets.basics import label
from app.ui.widgets.figure import Figure
from app.ui.widgets.sparkline import Sparkline

_STEPS = {Qt.Key.Key_Left: -1, Qt.Key.Key_Right: 1}


class _Popup(QFrame):
    """A name and its curve, above everything, which takes no focus."""

    def __init__(self, parent: QWidget, name: str, curve: Sparkline) -> None:
        super().__init__(parent, Qt.WindowType.ToolTip | Qt.WindowType.FramelessWindowHint)
        self.setObjectName("popup")
        self.setAttribute(Qt.WidgetAttribute.WA_ShowWithoutActivating)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.curve = curve
        curve.setFixedSize(300, 96)
        body = QVBoxLayout(self)
        body.setContentsMargins(12, 8, 12, 10)
        body.setSpacing(4)
        body.addWidget(label(name, "hint"))
        body.addWidget(curve)


class HistoryHover(QObject):
    """Watches figures, and shows the one that is looked at with its history below it."""

    def __init__(self, history: StatsHistory, parent: QWidget) -> None:
        super().__init__(parent)
        self._history = history
        self._figures: dict[QObject, str] = {}
        self._popup: _Popup | None = None
        self._shown: Figure | None = None

    @property
    def popup(self) -> QWidget | None:
        return self._popup

    @property
    def words(self) -> str:
        """What the cursor in the popup is at."""
        return self._popup.curve.pointed_at if self._popup is not None else ""

    def watch(self, figure: Figure, name: str) -> None:
        """`name`: the field of `Stats` that the figure shows."""
        self._figures[figure] = name
        figure.setMouseTracking(True)
        figure.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        figure.installEventFilter(self)

    def refresh(self) -> None:
        """New samples have come."""
        if self._popup is not None and self._shown is not None:
            name = self._figures[self._shown]
            span = self._history.span()
            self._popup.curve.show_curve(self._history.recent(name, span), span)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if not isinstance(watched, Figure):
            return False
        kind = event.type()
        if kind in (QEvent.Type.Enter, QEvent.Type.FocusIn):
            self._open(watched)
        elif kind in (QEvent.Type.Leave, QEvent.Type.FocusOut, QEvent.Type.Hide):
            self.close(watched)
        elif kind == QEvent.Type.MouseMove and isinstance(event, QMouseEvent):
            self._open(watched)
            if self._popup is not None:
                self._popup.curve.point_at(event.position().x() / max(1, watched.width()))
        elif kind == QEvent.Type.KeyPress and isinstance(event, QKeyEvent):
            return self._press(watched, event)
        return False

    def close(self, figure: Figure | None = None) -> None:
        """Show nothing, or no longer this figure's history."""
        if self._popup is not None and figure in (None, self._shown):
            self._popup.close()
            self._popup = self._shown = None

    def _press(self, figure: Figure, event: QKeyEvent) -> bool:
        if event.key() == Qt.Key.Key_Escape and self._popup is not None:
            self.close()
            return True
        by = _STEPS.get(Qt.Key(event.key()))
        if by is None:
            return False
        self._open(figure)
        if self._popup is not None:
            self._popup.curve.step(by)
            announce(figure, self._popup.curve.pointed_at)
        return True

    def _open(self, figure: Figure) -> None:
        if figure is self._shown or not len(self._history):
            return
        self.close()
        name = self._figures[figure]
        curve = Sparkline(figure.accessibleName(), stats_history.describe(name), figure.colour)
        curve.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._popup = _Popup(figure, figure.accessibleName(), curve)
        self._shown = figure
        self.refresh()
        self._popup.adjustSize()
        self._popup.move(self._place(figure, self._popup))
        self._popup.show()

    def _place(self, figure: Figure, popup: QWidget) -> QPoint:
        """Below the figure, above where there is no room, and on the screen in any case."""
        screen = figure.screen().availableGeometry()
        below = figure.mapToGlobal(QPoint(-12, figure.height() + 6))
        x = max(screen.left(), min(below.x(), screen.right() - popup.width()))
        if below.y() + popup.height() <= screen.bottom():
            return QPoint(x, below.y())
        return QPoint(x, figure.mapToGlobal(QPoint(0, -6)).y() - popup.height())
