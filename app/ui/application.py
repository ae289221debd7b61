"""The app as a whole: puts the parts together, and takes them apart at the end."""

from __future__ import annotations

import logging
import signal
import sys
from types import FrameType, TracebackType

from PySide6.QtCore import QObject, QTimer
from PySide6.QtWidgets import QApplication, QMessageBox

from app.core.settings import Settings
from app.core.supervisor import EngineView, Phase
from app.ui import icons, theme
from app.ui.download_service import DownloadService
from app.ui.engine_service import EngineService
from app.ui.governor_service import GovernorService
from app.ui.model_service import ModelService
from app.ui.settings_store import SettingsStore
from app.ui.single_instance import Launch, SingleInstance, settle
from app.ui.tray import Tray
from app.ui.window import MainWindow

log = logging.getLogger(__name__)

NAME = "Headrace"


class Headrace(QObject):
    """Everything that lives as long as the app does."""

    def __init__(self, app: QApplication, instance: SingleInstance | None = None) -> None:
        super().__init__()
        self._app = app
        self._instance = instance
        self._told = False
        self._ending = self._closed = False
        self.store = SettingsStore(self)
        theme.install(app, self.store.now.theme)
        app.setWindowIcon(icons.app_icon())
        app.setQuitOnLastWindowClosed(False)
        self.engine = EngineService(lambda: self.store.now, parent=self)
        self.governor = GovernorService(self.engine, self.store, parent=self)
        self.tray = Tray(self)
        self.downloads = DownloadService(parent=self)
        self.models = ModelService(lambda: self.store.now, lambda: self.engine.stats, parent=self)
        self.window = MainWindow(self.engine, self.store, self.tray, self.models, self.downloads)
        self._connect()
        if instance is not None:
            instance.raised.connect(self.window.raise_up)

    def begin(self, *, hidden: bool) -> None:
        """Show the window, or stay in the tray; start the engine if that is wished for."""
        if not hidden:
            self.window.show()
        elif not self.tray.available:
            # At login the tray may come later; until then the task list has the window.
            self.window.showMinimized()
        if self.store.now.start_engine_at_launch:
            self.engine.start()
        self.downloads.begin()

    def quit(self) -> None:
        """End the engine if it is the app's own, then the app."""
        if self._ending:
            return
        self._ending = True
        if self._instance is not None:
            self._instance.stop_listening()
        self.window.chat.session.close()
        self.engine.idle.connect(self._finish)
        self.window.end()
        self.engine.let_go()

    def close(self) -> None:
        """Let go of everything without touching the engine."""
        if self._closed:
            return
        self._closed = True
        self.governor.close()
        self.engine.close()
        self.downloads.close()
        self.models.close()
        self.tray.close()
        self.window.end()
        self.window.deleteLater()

    def _finish(self) -> None:
        self.close()
        self._app.quit()

    def _connect(self) -> None:
        self.store.changed.connect(self._settings_changed)
        self.engine.view_changed.connect(self._view_changed)
        self.engine.endpoint_changed.connect(self.tray.show_endpoint)
        self.tray.open_asked.connect(self.window.raise_up)
        self.tray.start_asked.connect(self.engine.start)
        self.tray.stop_asked.connect(self.engine.stop)
        self.tray.add_asked.connect(self._add_model)
        self.tray.quit_asked.connect(self.quit)
        self.tray.governor_menu.chosen.connect(self.governor.act)
        self.governor.view_changed.connect(self.tray.governor_menu.show_view)
        dashboard = self.window.dashboard
        dashboard.governor.chosen.connect(self.governor.act)
        self.governor.view_changed.connect(dashboard.governor.show_view)
        self.governor.programs_changed.connect(dashboard.memory.show_programs)
        self.window.quit_asked.connect(self.quit)
        self._app.styleHints().colorSchemeChanged.connect(self._scheme_changed)

    def _add_model(self) -> None:
        self.window.raise_up()
        self.window.add_model()

    def _settings_changed(self, before: Settings, now: Settings) -> None:
        if before.theme != now.theme:
            theme.apply(self._app, now.theme)

    def _scheme_changed(self) -> None:
        if self.store.now.theme == "system":
            theme.apply(self._app, "system")

    def _view_changed(self, view: EngineView) -> None:
        self.tray.show_view(view)
        trouble = view.phase in (Phase.GAVE_UP, Phase.FAILED)
        if trouble and not self._told and not self.window.isVisible():
            self.tray.tell("The engine needs you", view.reason)
        self._told = trouble


def _log_unexpected(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """An error in a slot ends nothing; without this only a terminal would hear of it."""
    log.critical("unexpected error", exc_info=(kind, error, trace))


def refuse(sentence: str) -> int:
    """Say in a dialog, and on the terminal, why Headrace cannot open. Returns the exit status."""
    _app = QApplication.instance() or QApplication([NAME])
    print(sentence, file=sys.stderr)
    QMessageBox.critical(None, NAME, sentence)
    return 1


def run(*, hidden: bool) -> int:
    """Open the app; returns when it ends. A second launch raises the first and ends at once."""
    app = QApplication([NAME])
    app.setApplicationName(NAME)
    app.setDesktopFileName("headrace")
    instance = SingleInstance()
    launch = settle(instance)
    if launch is Launch.RAISED:
        print("Headrace runs already; its window is in front now.")
        return 0
    if launch is Launch.UNANSWERED:
        return refuse(
            "Headrace runs already, but does not answer. End it in the task manager first."
        )
    sys.excepthook = _log_unexpected
    headrace = Headrace(app, instance)

    def asked_to_end(_: int, __: FrameType | None) -> None:
        QTimer.singleShot(0, headrace.quit)

    # Python runs signal handlers between bytecodes: the engine service's timer sees to that.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, asked_to_end)
    headrace.begin(hidden=hidden)
    code = app.exec()
    instance.release()
    return code
