"""The tray icon. Trays come late, go away, or never exist; the app never depends on one."""

from __future__ import annotations

from PySide6.QtCore import QObject, QTimer, Signal
from PySide6.QtGui import QAction, QGuiApplication
from PySide6.QtWidgets import QMenu, QSystemTrayIcon

from app.core.supervisor import RUNNING, EngineView, Phase
from app.ui import icons, theme
from app.ui.governor_menu import GovernorMenu
from app.ui.widgets.state_pill import WORDS

_LOOK_MS = 3_000
"""A desktop that restarts its panel, or logs in, has no tray for some seconds."""


class Tray(QObject):
    open_asked = Signal()
    add_asked = Signal()
    """A model is to be added."""
    start_asked = Signal()
    stop_asked = Signal()
    quit_asked = Signal()
    availability_changed = Signal(bool)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._endpoint = ""
        self._dot = ""
        self._available = False
        self.icon = QSystemTrayIcon(self)
        self.menu = QMenu()
        self.open_action = QAction("Open Headrace", self)
        self.engine_action = QAction("Start engine", self)
        self.copy_action = QAction("Copy endpoint", self)
        self.add_action = QAction("Add a model…", self)
        self.quit_action = QAction("Quit", self)
        self.state_action = QAction("", self)
        self.state_action.setEnabled(False)
        self.menu.addAction(self.open_action)
        self.menu.addSeparator()
        self.menu.addAction(self.state_action)
        self.menu.addAction(self.engine_action)
        self.menu.addAction(self.copy_action)
        self.menu.addAction(self.add_action)
        self.governor_menu = GovernorMenu(self.menu)
        self.menu.addMenu(self.governor_menu)
        self.menu.addSeparator()
        self.menu.addAction(self.quit_action)
        self.icon.setContextMenu(self.menu)
        self.icon.activated.connect(self._activated)
        self.open_action.triggered.connect(self.open_asked)
        self.engine_action.triggered.connect(self._toggle_engine)
        self.copy_action.triggered.connect(self._copy)
        self.add_action.triggered.connect(self.add_asked)
        self.quit_action.triggered.connect(self.quit_asked)
        self.show_view(EngineView())
        self.show_endpoint("")
        self._timer = QTimer(self)
        self._timer.setInterval(_LOOK_MS)
        self._timer.timeout.connect(self.look)
        self._timer.start()
        self.look()

    @property
    def available(self) -> bool:
        return self._available

    def look(self) -> None:
        """Notice a tray that came or went."""
        available = tray_available()
        if available == self._available:
            return
        self._available = available
        self.icon.setVisible(available)
        self.availability_changed.emit(available)

    def show_view(self, view: EngineView) -> None:
        words, dot = WORDS[view.phase]
        if dot != self._dot:
            self._dot = dot
            self.icon.setIcon(theme.tray_icon(dot))
        self.icon.setToolTip(f"Headrace: {words.lower()}")
        self.state_action.setText(f"Engine: {words.lower()}")
        self._running = view.phase in RUNNING
        words = "Stop engine" if self._running else "Start engine"
        self.engine_action.setText(f"{words} (started outside)" if view.outside else words)
        may_stop = view.ours and view.phase is not Phase.STOPPING
        self.engine_action.setEnabled(may_stop or not self._running)

    def show_endpoint(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self.copy_action.setEnabled(bool(endpoint))

    def tell(self, title: str, text: str) -> None:
        if self._available:
            self.icon.showMessage(title, text, icons.app_icon(), 6_000)

    def close(self) -> None:
        self._timer.stop()
        self.icon.hide()
        self.menu.deleteLater()

    def _toggle_engine(self) -> None:
        (self.stop_asked if self._running else self.start_asked).emit()

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(f"{self._endpoint}/v1")

    def _activated(self, reason: QSystemTrayIcon.ActivationReason) -> None:
        if reason in (
            QSystemTrayIcon.ActivationReason.Trigger,
            QSystemTrayIcon.ActivationReason.DoubleClick,
        ):
            self.open_asked.emit()


def tray_available() -> bool:
    """A seam for tests: Qt's own methods are no place to patch."""
    return QSystemTrayIcon.isSystemTrayAvailable()
