"""The dashboard: what the engine is doing now."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QGridLayout, QProgressBar, QScrollArea, QVBoxLayout, QWidget

from app.core import health, memory_view, units
from app.core.advice import names_settings
from app.core.history import History
from app.core.settings import Settings
from app.core.supervisor import RUNNING, EngineView, Phase
from app.ui import theme
from app.ui.widgets.banner import Banner
from app.ui.widgets.basics import Card, button, column, label, restyle, row, split_unit
from app.ui.widgets.channel_card import ChannelCard
from app.ui.widgets.figure import Figure
from app.ui.widgets.memory_panel import MemoryPanel
from app.ui.widgets.sparkline import Sparkline
from engine import __version__
from engine.messages import Stats

HISTORY_SAMPLES = 90

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

    def __init__(self) -> None:
        super().__init__()
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setAccessibleName("Dashboard")
        self._view = EngineView()
        self._plan = ""
        self._speed = History(HISTORY_SAMPLES)
        self.banner = Banner()
        self._again = self.banner.add_button("Try again")
        self._to_settings = self.banner.add_button("Open settings")
        self._to_settings.clicked.connect(self.settings_asked)
        self.banner.add_button("Show log").clicked.connect(self.log_asked)
        self._again.clicked.connect(self._try_again)
        self.channel = ChannelCard()
        content = QWidget()
        content.setObjectName("scrolled")
        body = QVBoxLayout(content)
        body.setContentsMargins(24, 20, 24, 24)
        body.setSpacing(16)
        body.addWidget(self.banner)
        body.addWidget(self._make_engine_card())
        body.addLayout(self._make_speed_row())
        body.addWidget(self.channel)
        body.addWidget(self._make_memory_card())
        body.addStretch()
        self.setWidget(content)
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
            self._speed.clear()
            self._sparkline.show_values((), HISTORY_SAMPLES)
            self.channel.clear_history()

    def show_plan(self, settings: Settings) -> None:
        """What the engine would be started with."""
        self._plan = f"{Path(settings.model).name}  ·  device: {_DEVICES[settings.device]}"

    def show_stats(self, stats: Stats) -> None:
        if self._view.phase not in _HEADLINES:
            self._headline.setText(stats.model or "Loading the model")
        self._facts.setText(_facts(stats, self._view) or self._plan)
        ready = self._view.phase is Phase.READY
        if ready:
            self._speed.add(stats.decode_tokens_per_s)
            self._sparkline.show_values(self._speed.values, HISTORY_SAMPLES)
        self._decode.show_value(units.speed(stats.decode_tokens_per_s) if ready else "–")
        self._prefill.show_value(units.speed(stats.prefill_tokens_per_s) if ready else "–")
        self._peak.show_value(units.speed(self._speed.highest) if self._speed.highest else "–")
        self._show_time(self._ttft, stats.ttft_s)
        self._show_time(self._ttft_worst, stats.ttft_worst_s)
        known = stats.state != "stopped"
        for figure, number in (
            (self._running, stats.requests_running),
            (self._waiting, stats.requests_waiting),
            (self._finished, stats.requests_finished),
            (self._failed, stats.requests_failed),
        ):
            figure.show_value(units.count(number) if known else "–")
        self.channel.show_stats(stats, ready=ready)
        self._show_memory(stats)

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

    def _make_speed_row(self) -> QGridLayout:
        speed = Card("SPEED")
        self._decode = Figure("Tokens a second", "tok/s", 36)
        self._prefill = Figure("Reading prompts", "tok/s")
        self._peak = Figure("Highest in view", "tok/s")
        self._sparkline = Sparkline("Tokens a second", lambda value: f"{units.speed(value)} tok/s")
        self._sparkline.setMinimumHeight(112)
        figures = column(12)
        for figure in (self._decode, self._prefill, self._peak):
            figures.addWidget(figure)
        figures.addStretch()
        inside = row(24)
        inside.addLayout(figures)
        inside.addWidget(self._sparkline, 1)
        speed.body.addLayout(inside)

        requests = Card("REQUESTS")
        self._ttft = Figure("Time to first token")
        self._ttft_worst = Figure("Longest so far")
        self._running, self._waiting = Figure("Running"), Figure("Waiting")
        self._finished, self._failed = Figure("Finished"), Figure("Failed")
        grid = QGridLayout()
        grid.setHorizontalSpacing(24)
        grid.setVerticalSpacing(14)
        for at, figure in enumerate(
            (
                self._ttft,
                self._ttft_worst,
                self._running,
                self._waiting,
                self._finished,
                self._failed,
            )
        ):
            grid.addWidget(figure, at // 2, at % 2)
        requests.body.addLayout(grid)
        requests.body.addStretch()

        both = QGridLayout()
        both.setSpacing(16)
        both.addWidget(speed, 0, 0)
        both.addWidget(requests, 0, 1)
        both.setColumnStretch(0, 5)
        both.setColumnStretch(1, 3)
        return both

    def _make_memory_card(self) -> Card:
        card = Card("MEMORY BY OWNER")
        self.vram = MemoryPanel("VRAM")
        self.ram = MemoryPanel("RAM")
        both = row(theme.GRID * 5)
        for panel in (self.vram, self.ram):
            both.addWidget(panel, 1, Qt.AlignmentFlag.AlignTop)
        card.body.addLayout(both)
        return card

    def _show_memory(self, stats: Stats) -> None:
        loading = self._view.phase in _LOADING
        nothing = "The model is loading." if loading else "No model is loaded."
        on_cpu = "Not in use: this device computes in host memory."
        self.vram.rename(memory_view.device_memory_name(stats))
        self.vram.show_owners(
            memory_view.device_memory(stats),
            stats.vram_total_bytes,
            on_cpu if stats.device == "cpu" else nothing,
        )
        self.ram.show_owners(memory_view.host_memory(stats), stats.ram_total_bytes, nothing)

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

    def _show_time(self, figure: Figure, seconds: float) -> None:
        figure.show_value(*split_unit(units.duration(seconds)) if seconds > 0 else ("–", ""))

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
