"""The main window: rail, header, pages, and what closing it means."""

from __future__ import annotations

from PySide6.QtCore import QByteArray, QEvent, QSize, Signal
from PySide6.QtGui import QCloseEvent, QHideEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QMainWindow, QStackedWidget, QWidget

from app.core import close_policy
from app.core.chats.store import ConversationStore, database
from app.core.close_policy import CloseStep
from app.core.downloads.records import Job, Request
from app.core.supervisor import RUNNING, EngineView, Phase
from app.ui import icons
from app.ui.add_model_dialog import AddModelDialog
from app.ui.chat_archive import ChatArchive
from app.ui.chat_session import ChatSession
from app.ui.close_dialog import CloseDialog
from app.ui.download_service import DownloadService
from app.ui.engine_service import EngineService
from app.ui.model_service import ModelService
from app.ui.pages.chat import ChatPage
from app.ui.pages.dashboard import DashboardPage
from app.ui.pages.logs import LogsPage
from app.ui.pages.models import ModelsPage
from app.ui.pages.settings import SettingsPage
from app.ui.residency_follower import ResidencyFollower
from app.ui.settings_store import SettingsStore
from app.ui.tray import Tray
from app.ui.widgets.banner import Banner
from app.ui.widgets.basics import column, row
from app.ui.widgets.header import Header
from app.ui.widgets.rail import Rail
from engine.messages import Stats

PAGES = [
    ("dashboard", "Dashboard"),
    ("chat", "Chat"),
    ("models", "Models"),
    ("logs", "Logs"),
    ("settings", "Settings"),
]
_WIDE = 920
"""From here on the rail has room for names beside the pages."""
DASHBOARD, CHAT, MODELS, LOGS, SETTINGS = range(len(PAGES))


class MainWindow(QMainWindow):
    quit_asked = Signal()

    def __init__(
        self,
        engine: EngineService,
        store: SettingsStore,
        tray: Tray,
        models: ModelService,
        downloads: DownloadService,
    ) -> None:
        super().__init__()
        self._engine = engine
        self._model_service, self._downloads = models, downloads
        self._to_use: set[str] = set()
        """Downloads whose model the engine is to run once it is there."""
        self._store = store
        self._tray = tray
        self._quitting = False
        self.setWindowTitle("Headrace")
        self.setWindowIcon(icons.app_icon())
        self.setMinimumSize(780, 540)
        self.resize(first_size(self.screen().availableSize()))
        self.header = Header()
        self.rail = Rail(PAGES)
        self.dashboard = DashboardPage()
        self.archive = ChatArchive(ConversationStore(database()), self)
        self.chat = ChatPage(ChatSession(engine, store, self.archive, self), self.archive)
        self.models = ModelsPage(models, downloads, store)
        self._residency = ResidencyFollower(engine, self.dashboard.residency, self)
        self.logs = LogsPage()
        self.settings = SettingsPage(store)
        self._pages = QStackedWidget()
        for page in (self.dashboard, self.chat, self.models, self.logs, self.settings):
            self._pages.addWidget(page)
        self.notice = Banner()
        self.notice.add_button("Open settings").clicked.connect(lambda: self.open_page(SETTINGS))
        self.notice.add_button("Dismiss").clicked.connect(self.notice.hide)
        self.notice.show_problem(" ".join(store.lost))
        notice = row(0)
        notice.setContentsMargins(24, 0, 24, 0)
        notice.addWidget(self.notice)
        right = column(0)
        right.addWidget(self.header)
        right.addLayout(notice)
        right.addWidget(self._pages, 1)
        whole = row(0)
        whole.addWidget(self.rail)
        whole.addLayout(right, 1)
        middle = QWidget()
        middle.setObjectName("page")
        middle.setLayout(whole)
        self.setCentralWidget(middle)
        self.header.add_action(self.chat.title_actions)
        self.header.add_action(self.models.add_button)
        self.header.add_action(self.dashboard.export)
        self._connect()
        self.open_page(DASHBOARD)
        self.dashboard.setFocus()
        self._restore_place()
        self._show_view(engine.view)
        self._show_stats(engine.stats)

    def open_page(self, index: int) -> None:
        self.rail.choose(index)
        self._pages.setCurrentIndex(index)
        self.header.title.setText(PAGES[index][1])
        self.chat.title_actions.setVisible(index == CHAT)
        self.models.add_button.setVisible(index == MODELS)
        self.dashboard.export.setVisible(index == DASHBOARD)

    def raise_up(self) -> None:
        """Bring the window before the person, from wherever it is."""
        self.setVisible(True)
        if self.isMinimized():
            self.showNormal()
        self.raise_()
        self.activateWindow()

    def end(self) -> None:
        """Close for good: the app quits."""
        self._quitting = True
        self.chat.close_chats()
        self._save_place()
        self.close()

    # --- closing ---

    def closeEvent(self, event: QCloseEvent) -> None:
        if self._quitting:
            event.accept()
            return
        event.ignore()
        step = close_policy.on_close(self._store.now.on_close, tray=self._tray.available)
        if step is CloseStep.ASK:
            step = self._ask()
        self._save_place()
        if step is CloseStep.HIDE:
            self.hide()
        elif step is CloseStep.MINIMISE:
            self.showMinimized()
        elif step is CloseStep.QUIT:
            self.quit_asked.emit()

    def _ask(self) -> CloseStep:
        view = self._engine.view
        running = view.phase in RUNNING and view.ours
        dialog = CloseDialog(self, tray=self._tray.available, engine_running=running)
        accepted = dialog.exec()
        choice = dialog.choice
        dialog.deleteLater()
        if not accepted or choice == "ask":
            return CloseStep.ASK
        self._store.update(on_close=choice)
        return close_policy.on_close(choice, tray=self._tray.available)

    def _tray_changed(self, available: bool) -> None:
        if not available and not self.isVisible() and not self._quitting:
            self.showMinimized()  # the icon that led back to it is gone

    # --- what is shown ---

    def _connect(self) -> None:
        engine = self._engine
        self.rail.chosen.connect(self.open_page)
        engine.view_changed.connect(self._show_view)
        engine.view_changed.connect(self._look_at_models)
        engine.stats_changed.connect(self._show_stats)
        engine.endpoint_changed.connect(self.header.chip.show_endpoint)
        engine.endpoint_changed.connect(lambda _: self._show_view(engine.view))
        self.dashboard.start_asked.connect(engine.start)
        self.dashboard.stop_asked.connect(engine.stop)
        self.dashboard.own_asked.connect(self._start_own)
        self.dashboard.restart_asked.connect(engine.restart)
        self.dashboard.dismissed.connect(engine.dismiss)
        self.dashboard.log_asked.connect(lambda: self.open_page(LOGS))
        self.dashboard.settings_asked.connect(lambda: self.open_page(SETTINGS))
        self.dashboard.on_screen.connect(self._watch_residency)
        self.settings.apply_asked.connect(self._apply_settings)
        self.chat.model_asked.connect(self.add_model)
        self.models.add_asked.connect(self.add_model)
        self.models.use_asked.connect(self.use_model)
        self._downloads.ready.connect(self._model_ready)
        self._tray.availability_changed.connect(self._tray_changed)
        engine.ticked.connect(self._show_retry)

    def _show_view(self, view: EngineView) -> None:
        self.dashboard.show_plan(self._store.now)
        self.header.show_view(view)
        self.dashboard.show_view(view, self._engine.seconds_to_retry())
        self.chat.show_view(view)
        self.settings.show_engine(view, self._engine.endpoint)
        self.logs.show_elsewhere(self._engine.logs_elsewhere)
        if view.phase is not Phase.READY:
            self._show_stats(self._engine.stats)

    def _show_stats(self, stats: Stats) -> None:
        self.header.show_model(stats.model)
        self.rail.show_stats(stats)
        self.dashboard.show_stats(stats)

    def _show_retry(self) -> None:
        if self._engine.view.phase is Phase.BACKING_OFF:
            self.dashboard.show_view(self._engine.view, self._engine.seconds_to_retry())

    def _start_own(self) -> None:
        """Where somebody else's server has the port, another one must be chosen first."""
        if self._engine.port_held_outside:
            self.open_page(SETTINGS)
            self.settings.port.setFocus()
        else:
            self._engine.start_own()

    # --- models ---

    def add_model(self, request: Request | None = None) -> AddModelDialog:
        """Open the dialog, over the page of models, where its downloads can be seen."""
        self.open_page(MODELS)
        dialog = AddModelDialog(self, self._model_service, self._downloads, self._store, request)
        dialog.use_asked.connect(self.use_model)
        dialog.download_asked.connect(self._download)
        dialog.open()
        return dialog

    def use_model(self, model: str) -> None:
        """Let the engine run this model from now on: a path, or the bundled model's name."""
        self._store.update(model=model)
        self.settings.show_settings()
        if self._engine.view.outside and self._engine.port_held_outside:
            self.models.banner.show_problem(
                "The model is chosen, but an engine that was started outside the app runs now.",
                "End that one, or choose another port in Settings and apply it.",
            )
        elif self._engine.view.phase in RUNNING:
            self._apply_settings()
        else:
            self._engine.start()

    def _look_at_models(self, view: EngineView) -> None:
        """What the engine holds or gives back changes what fits."""
        if view.phase in (Phase.READY, Phase.STOPPED) and self.models.isVisible():
            self._model_service.refresh()

    def _download(self, request: Request, use_it: bool) -> None:
        if use_it:
            self._to_use.add(request.id)
        self._downloads.add(request)

    def _model_ready(self, job: Job) -> None:
        self._model_service.refresh()
        self._tray.tell("A model is ready", f"{job.request.repo} is downloaded and checked.")
        if job.id in self._to_use:
            self._to_use.discard(job.id)
            self.use_model(job.path)

    def _apply_settings(self) -> None:
        """An engine that the person has stopped stays so; one that could not run tries anew."""
        if self._engine.view.outside:
            self._engine.start_own()
        elif self._engine.view.phase in RUNNING:
            self._engine.restart()
        elif self._engine.view.phase is not Phase.STOPPED:
            self._engine.start()

    # --- place on the screen ---

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.rail.set_narrow(self.width() < _WIDE)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._engine.set_watched(not self.isMinimized())
        self._watch_residency()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._engine.set_watched(False)

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.WindowStateChange:
            self._engine.set_watched(self.isVisible() and not self.isMinimized())
            self._watch_residency()

    def _watch_residency(self) -> None:
        self._residency.set_watched(self.dashboard.isVisible() and not self.isMinimized())

    def _restore_place(self) -> None:
        saved = self._store.now.window_geometry
        if saved:
            # Qt itself moves a window back whose screen is gone.
            self.restoreGeometry(QByteArray.fromBase64(QByteArray(saved.encode())))

    def _save_place(self) -> None:
        saved = bytes(self.saveGeometry().toBase64().data()).decode()
        self._store.update(window_geometry=saved)


def first_size(screen: QSize) -> QSize:
    """The window's size before anyone has chosen one: all of it on the screen, its frame too."""
    frame = QSize(16, 64)
    return QSize(1200, 880).boundedTo(screen - frame)
