"""The dashboard: what the engine is doing now."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import QFrame, QProgressBar, QScrollArea, QVBoxLayout, QWidget

from app.core import health, units
from app.core.advice import names_settings
from app.core.settings import Settings
from app.core.stats_history import StatsHistory
from app.core.supervisor import RUNNING, EngineView, Phase
from app.ui.widgets.banner import Banner
from app.ui.widgets.basics import Card, button, column, label, restyle, row
from app.ui.widgets.channel_card import ChannelCard
from app.ui.widgets.export_button import ExportButton
from app.ui.widgets.fitting import SideBySide
from app.ui.widgets.governor_card import GovernorCard
from app.ui.widgets.history_hover import HistoryHover
from app.ui.widgets.memory_card import MemoryCard
from app.ui.widgets.residency_card import ResidencyCard
from app.ui.widgets.speed_card import RequestCard, SpeedCard
from engine import __version__
from engine.messages import Stats

_GAP = 16
_TURN, _WIDE = 700, 1240
"""From these widths on there is room for two cards in a row."""

_HEADLINES = {
    Phase.STOPPED: "The engine is stopped",
    Phase.STARTING: "Starting the engine",
    Phase.STOPPING: "Stopping the engine",
    Phase.BACKING_OFF: "The engine crashed",
    Phase.GAVE_UP: "The engine cannot run",
    Phase.FAILED: "The model could not be loaded",
    Phase.SILENT: "The engine does not respond",
    Phase.RESTARTING: "Restarting the engine",
}
_NOT_OURS = "This engine was started outside the app, which uses it and leaves it alone."
_LOADING = (Phase.STARTING, Phase.LOADING, Phase.RESTARTING)
_DEVICES = {"cpu": "CPU", "sim": "simulated GPU", "cuda": "NVIDIA GPU", "auto": "automatic"}
_STARTABLE = (Phase.STOPPED, Phase.GAVE_UP, Phase.BACKING_OFF)


class DashboardPage(QScrollArea):
    start_asked = Signal()
    stop_asked = Signal()
    own_asked = Signal()
    """An engine of the app's own, beside somebody else's that is used now."""
    restart_asked = Signal()
    log_asked = Signal()
    settings_asked = Signal()
    dismissed = Signal()
    on_screen = Signal(bool)
    """Whether the page can be seen."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """`clock` tells seconds since 1970."""
        super().__init__()
        self._clock = clock
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setAccessibleName("Dashboard")
        self._view = EngineView()
        self._plan = ""
        self.history = StatsHistory()
        self.hover = HistoryHover(self.history, self)
        self.banner = Banner()
        self._again = self.banner.add_button("Try again")
        self._to_settings = self.banner.add_button("Open settings")
        self._to_settings.clicked.connect(self.settings_asked)
        self.banner.add_button("Show log").clicked.connect(self.log_asked)
        self._again.clicked.connect(self._try_again)
        self.governor = GovernorCard()
        self._speed, self._requests = SpeedCard(), RequestCard()
        self.channel, self.residency, self.memory = ChannelCard(), ResidencyCard(), MemoryCard()
        for card in (self._speed, self._requests, self.channel):
            for name, figure in card.tracked.items():
                self.hover.watch(figure, name)
        content = QWidget()
        content.setObjectName("scrolled")
        body = QVBoxLayout(content)
        body.setContentsMargins(24, 20, 24, 24)
        body.setSpacing(_GAP)
        body.addWidget(self.banner)
        body.addWidget(self._make_engine_card())
        body.addWidget(self.governor)
        body.addWidget(SideBySide([self._speed, self._requests], _TURN, _GAP, (5, 3)))
        body.addWidget(SideBySide([self.channel, self.residency], _WIDE, _GAP, (4, 3)))
        body.addWidget(self.memory)
        body.addStretch()
        self.setWidget(content)
        self.export = ExportButton(content, self.history)
        self.verticalScrollBar().valueChanged.connect(lambda _: self.hover.close())
        self.show_view(self._view, 0)
        self.show_stats(Stats(state="stopped"))

    @property
    def facts(self) -> str:
        """The line under the engine's headline."""
        return self._facts.text()

    # --- content ---

    def show_view(self, view: EngineView, seconds_to_retry: float) -> None:
        """State, progress and problems. Call it again each second while a retry is due."""
        self._view = view
        self._show_problem(view, seconds_to_retry)
        health_record = view.health
        loading = view.phase in _LOADING
        self._progress.setVisible(loading)
        self._doing.setVisible(loading)
        if health_record is not None and health_record.total > 0:
            self._progress.setRange(0, 1000)
            self._progress.setValue(1000 * health_record.done // health_record.total)
        else:
            self._progress.setRange(0, 0)
        if loading:
            words = health.describe_progress(health_record) if health_record else "Starting"
            self._doing.setText(words)
        if headline := _HEADLINES.get(view.phase):
            self._headline.setText(headline)
        startable = view.phase in _STARTABLE
        self.toggle.setText("Start engine" if startable else "Stop engine")
        self.toggle.setEnabled(view.phase is not Phase.STOPPING and (startable or view.ours))
        self.toggle.setToolTip("" if startable or view.ours else _NOT_OURS)
        restyle(self.toggle, primary=startable)
        self.own.setVisible(view.outside and view.phase in RUNNING)
        if view.phase is not Phase.READY:
            self.history.clear()
            self._show_history()

    def show_plan(self, settings: Settings) -> None:
        """What the engine would be started with."""
        self._plan = f"{Path(settings.model).name}  ·  device: {_DEVICES[settings.device]}"

    def show_stats(self, stats: Stats) -> None:
        if self._view.phase not in _HEADLINES:
            self._headline.setText(stats.model or "Loading the model")
        self._facts.setText(_facts(stats, self._view) or self._plan)
        ready = self._view.phase is Phase.READY
        if ready:
            self.history.add(self._clock(), stats)
        self._speed.show_stats(stats, ready=ready)
        self._requests.show_stats(stats)
        self.channel.show_stats(stats, ready=ready)
        self.memory.show_stats(stats, loading=self._view.phase in _LOADING)
        self._show_history()

    def _show_history(self) -> None:
        if self.isVisible():  # else when it is shown again
            self._speed.show_history(self.history)
            self.channel.show_history(self.history)
            self.hover.refresh()

    # --- on screen or not ---

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._show_history()
        self.on_screen.emit(True)

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self.hover.close()
        self.on_screen.emit(False)

    # --- parts ---

    def _make_engine_card(self) -> Card:
        card = Card()
        self._headline = label("", "heading")
        self._facts = label("", "muted", wrap=True)
        self._doing = label("", "muted")
        self._progress = QProgressBar()
        self._progress.setTextVisible(False)
        self._progress.setFixedHeight(6)
        self._progress.setAccessibleName("Loading progress")
        self.toggle = button("Start engine", primary=True)
        self.toggle.clicked.connect(self._toggle)
        self.own = button("Start own engine")
        self.own.setToolTip("Starts the engine of the settings; the one that runs now is left.")
        self.own.clicked.connect(self.own_asked)
        words = column(4)
        words.addWidget(self._headline)
        words.addWidget(self._facts)
        top = row(16)
        top.addLayout(words, 1)
        top.addWidget(self.own, 0, Qt.AlignmentFlag.AlignTop)
        top.addWidget(self.toggle, 0, Qt.AlignmentFlag.AlignTop)
        card.body.addLayout(top)
        card.body.addWidget(self._progress)
        card.body.addWidget(self._doing)
        return card

    def _show_problem(self, view: EngineView, seconds_to_retry: float) -> None:
        if view.phase is Phase.BACKING_OFF:
            hint = f"It starts again in {max(1, round(seconds_to_retry))} s."
            if view.crashes > 1:
                hint += f" It has crashed {units.times(view.crashes)} in a row."
            self.banner.show_problem(view.reason, hint)
        elif view.phase is Phase.GAVE_UP:
            hint = view.hint
            if view.crashes > 1:
                hint = f"It has crashed {units.times(view.crashes)} in a row. The log says more."
            self.banner.show_problem(view.reason, hint)
        elif view.phase is Phase.SILENT:
            self.banner.show_problem(
                view.reason or "The engine server does not answer.",
                "A machine short of memory can cause this. "
                + ("It is restarted if this goes on." if view.ours or view.adopting else _NOT_OURS),
            )
        elif view.phase is Phase.READY and not view.ours:
            self.banner.show_problem(view.reason, _NOT_OURS)
        elif view.phase is Phase.READY:
            self.banner.show_problem(view.reason, "The engine runs again.")
        elif view.phase in _LOADING:
            self.banner.show_problem(view.reason, "The engine is starting again.")
        else:
            self.banner.show_problem(view.reason, view.hint)
        words = {Phase.BACKING_OFF: "Start now", Phase.READY: "Dismiss"}
        self._again.setText(words.get(view.phase, "Try again"))
        dismissable = view.phase is Phase.READY
        may_try = view.ours and view.phase not in _LOADING
        self._again.setVisible(dismissable or view.phase in _STARTABLE or may_try)
        self._to_settings.setVisible(names_settings(f"{view.reason} {view.hint}"))

    def _toggle(self) -> None:
        (self.start_asked if self._view.phase in _STARTABLE else self.stop_asked).emit()

    def _try_again(self) -> None:
        if self._view.phase is Phase.READY:
            self.dismissed.emit()
            return
        (self.start_asked if self._view.phase in _STARTABLE else self.restart_asked).emit()


def _facts(stats: Stats, view: EngineView) -> str:
    parts = []
    if view.phase is Phase.READY:
        parts += [_DEVICES.get(stats.device, stats.device), stats.dtype, stats.family]
        if stats.server_uptime_s:
            parts.append(f"up {units.uptime(stats.server_uptime_s)}")
    if stats.runtime_restarts:
        parts.append(f"restarted {units.times(stats.runtime_restarts)} after a crash")
    if view.adopting:
        parts.append("being taken over from an earlier session")
    elif not view.ours:
        parts.append("started outside the app, which leaves it alone")
    elif view.adopted:
        parts.append("taken over from an earlier session")
    if view.other_version:
        words = f"version {view.other_version}, while Headrace is {__version__}"
        parts.append(f"{words}: restart it to update" if view.ours else words)
    return "  ·  ".join(part for part in parts if part)
