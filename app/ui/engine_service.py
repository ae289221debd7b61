"""The supervisor with hands: spawns, follows, adopts and ends the engine's server."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable

import msgspec
import psutil
from PySide6.QtCore import QObject, QTimer, Signal

from app.core import health as health_of
from app.core import launch, log_file, server_record
from app.core.completion import error_message
from app.core.governor import budget
from app.core.launch import Ending
from app.core.server_record import ServerRecord
from app.core.settings import Settings
from app.core.supervisor import Action, EngineView, Phase, Supervisor
from app.ui.http import Answer, EventStream, HttpClient, OnAnswer
from engine import __version__, api_keys, processes
from engine.messages import Stats

log = logging.getLogger(__name__)

TICK_MS = 250
POLL_EAGER_S = 0.4
POLL_CALM_S = 2.0
LOOK_S = 1.0
"""How often an adopted server's process is looked for, and the log's size."""
STREAM_RETRY_S = 1.0


class EngineService(QObject):
    """The one place in the app that knows the engine's process and its address."""

    view_changed = Signal(object)
    """EngineView"""
    stats_changed = Signal(object)
    """Stats, about once a second while a server answers."""
    endpoint_changed = Signal(str)
    """Base address of the running server; empty while none is known."""
    ticked = Signal()
    """A few times a second, for what counts down."""
    idle = Signal()
    """No engine of this app runs any more."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        clock: Callable[[], float] = time.monotonic,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._settings = settings
        self._clock = clock
        self.http = HttpClient(lambda: api_keys.local_key() or settings().api_key, self)
        self.supervisor = Supervisor(clock)
        self.stats = Stats(state="stopped")
        self._shown = self.supervisor.view
        self._endpoint = ""
        self._process: launch.ServerProcess | None = None
        self._record: ServerRecord | None = None
        self._log_start = 0
        self._spawned_at = 0.0
        self._asked_health = False
        self._last_health = self._last_look = self._last_stream = -1e9
        self._stream: EventStream | None = None
        self._watched = True
        self._governed = False
        self._look_at_version = False
        self._timer = QTimer(self)
        self._timer.setInterval(TICK_MS)
        self._timer.timeout.connect(self._tick)
        self._timer.start()

    # --- for the window ---

    @property
    def view(self) -> EngineView:
        return self.supervisor.view

    @property
    def endpoint(self) -> str:
        return self._endpoint

    @property
    def model(self) -> str:
        """The name that the running server gives its model; empty while it is not known."""
        health = self.view.health
        return health.model if health is not None and health.model else self.stats.model

    @property
    def server_pid(self) -> int:
        """Pid of the server that is followed; 0 where there is none."""
        if self._record is not None:
            return self._record.pid
        return self._process.pid if self._process is not None else 0

    @property
    def logs_elsewhere(self) -> bool:
        """Whether it was started by hand: it writes its log where that was done."""
        return self._record is not None and not self._record.owner_pid

    def seconds_to_retry(self) -> float:
        at = self.view.retry_at
        return max(0.0, at - self._clock()) if at is not None else 0.0

    @property
    def port_held_outside(self) -> bool:
        """Whether somebody else's server, which is used now, has the port of the settings."""
        record = self._record
        return record is not None and self.view.outside and record.port == self._settings().port

    def start(self) -> None:
        """Take over a server that was left behind or has the port, else start one."""
        if self.supervisor.running:
            return
        record = server_record.to_use(server_record.running_servers(), self._settings().port)
        self._record = record
        if record is not None:
            self._log_start = _log_size()
            log.info("found a running server, pid %d at %s", record.pid, record.url)
        self._do(
            self.supervisor.start(
                found=record is not None,
                orphaned=record is not None and record.orphaned,
                other_version=_other_version(record),
            )
        )

    def start_own(self) -> None:
        """Start the app's own engine beside somebody else's server, which is used no more."""
        if not self.view.outside or self.port_held_outside:
            return
        self._do(self.supervisor.leave())
        self._forget_server()
        self.start()

    def stop(self) -> None:
        self._do(self.supervisor.stop())

    def restart(self) -> None:
        self._do(self.supervisor.restart())

    def dismiss(self) -> None:
        """Show the reason of the last crash no more."""
        self._do(self.supervisor.dismiss())

    def let_go(self) -> None:
        """Before the app ends: end the engine if it is the app's, and signal `idle` then."""
        if self.supervisor.running and self.view.ours:
            self.stop()
            return
        if not self.view.ours:
            self._forget_server()
        self.supervisor.view = EngineView()
        self._publish()
        self.idle.emit()

    def set_watched(self, watched: bool) -> None:
        """Whether anybody looks: with no window on screen, figures need not come each second."""
        if watched != self._watched:
            self._watched = watched
            self._close_stream()

    def set_governed(self, governed: bool) -> None:
        """Whether figures are needed each second though nobody looks: VRAM is governed by them."""
        if governed != self._governed:
            self._governed = governed
            if not self._watched:
                self._close_stream()

    def ask_for_budget(self, body: bytes, on_answer: OnAnswer) -> None:
        """Tell the running server how much VRAM its engine may hold."""
        record = self._record
        if record is None:
            on_answer(Answer(0, b"", "No engine runs."))
            return
        url = record.url + budget.PATH
        self.http.post(url, body, on_answer, token=record.control_token())

    def ask_for_residency(self, on_answer: OnAnswer) -> None:
        """Ask the running server which experts have slots."""
        record = self._record
        if record is None:
            on_answer(Answer(0, b"", "No engine runs."))
            return
        url = f"{record.url}/v1/engine/residency"
        self.http.get(url, on_answer, token=record.control_token())

    def close(self) -> None:
        """Stop following, without touching the server. The object is of no use afterwards."""
        self._timer.stop()
        self._close_stream()

    # --- what the supervisor decides ---

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            log.info("engine: %s", action.value)
            {
                Action.SPAWN: self._spawn,
                Action.ADOPT: self._adopt,
                Action.SHUT_DOWN: self._shut_down,
                Action.KILL: self._kill,
            }[action]()
        self._publish()

    def _spawn(self) -> None:
        self._forget_server()
        path = launch.server_log()
        self._spawned_at = time.time()
        settings = self._settings()
        try:
            launch.write_key(settings)
            self._process = launch.ServerProcess(launch.serve_command(settings, os.getpid()), path)
        except OSError as error:
            self._do(self.supervisor.spawn_failed(f"The engine server cannot be started: {error}"))
            return
        self._log_start = self._process.log_start

    def _adopt(self) -> None:
        record = self._record
        if record is None:
            return

        def answered(answer: Answer) -> None:
            if record is not self._record or self.view.phase is Phase.STOPPING:
                return
            if answer.ok:
                self._look_at_version = bool(self.view.other_version)
                self._do(self.supervisor.adopted())
            else:
                why = error_message(answer.body, answer.error or f"status {answer.status}")
                reason = f"An engine server from before could not be taken over ({why})."
                self._do(self.supervisor.adoption_failed(reason))

        body = msgspec.json.encode({"pid": os.getpid()})
        url = f"{record.url}/v1/engine/owner"
        self.http.post(url, body, answered, token=record.control_token())

    def _shut_down(self) -> None:
        self._close_stream()
        record = self._record
        if record is None:
            self._terminate()  # it does not listen yet, so it cannot be asked
            return

        def answered(answer: Answer) -> None:
            if not answer.ok and record is self._record:
                log.warning("the server does not obey (%s): ending it", answer.error)
                self._terminate()

        url = f"{record.url}/v1/engine/shutdown"
        self.http.post(url, b"{}", answered, token=record.control_token())

    def _terminate(self) -> None:
        """Ask the process itself, as a service manager would."""
        if not self.server_pid or (self._record and not server_record.is_running(self._record)):
            return
        try:
            psutil.Process(self.server_pid).terminate()
        except psutil.Error as error:
            log.warning("cannot end the server: %s", error)

    def _kill(self) -> None:
        self._close_stream()
        if self._record is not None:
            server_record.end_process(self._record)
        if self._process is not None:
            self._process.kill()

    # --- following ---

    def _tick(self) -> None:
        now = self._clock()
        if self.supervisor.running:
            self._watch_process(now)
        if self.supervisor.running and self.view.phase is not Phase.STOPPING:
            self._find_record()
            self._poll_health(now)
            self._keep_stream(now)
        self._do(self.supervisor.tick())
        self.ticked.emit()

    def _watch_process(self, now: float) -> None:
        look = now - self._last_look >= LOOK_S
        if look:
            self._last_look = now
            log_file.rotate(launch.server_log())
        if self._process is not None:
            code = self._process.exit_code()
            if code is not None:
                self._gone(launch.ending(code, launch.server_log(), self._log_start))
        elif self._record is not None and look and not server_record.is_running(self._record):
            self._gone(launch.ending(None, launch.server_log(), self._log_start))

    def _gone(self, ending: Ending) -> None:
        if self.view.phase is not Phase.STOPPING:
            log.warning("%s", ending.reason)
        self._forget_server()
        self._do(self.supervisor.exited(ending.reason, ending.hint, refused=ending.refused))
        if not self.supervisor.running:
            self.idle.emit()

    def _find_record(self) -> None:
        """The server that was spawned tells its address in its record once it listens."""
        if self._record is None and self._process is not None:
            earliest = self._spawned_at - processes.START_TOLERANCE_S
            for record in server_record.running_servers():
                # A launcher may stand between the spawned pid and the server's, hence the owner.
                if record.owner_pid == os.getpid() and record.started >= earliest:
                    self._record = record
        if self._record is not None and self._record.url != self._endpoint:
            self._endpoint = self._record.url
            self.endpoint_changed.emit(self._endpoint)

    def _poll_health(self, now: float) -> None:
        pause = POLL_CALM_S if self.view.phase is Phase.READY else POLL_EAGER_S
        if self._record is None or self._asked_health or now - self._last_health < pause:
            return
        record = self._record
        self._asked_health = True
        self._last_health = now

        def answered(answer: Answer) -> None:
            self._asked_health = False
            if record is not self._record or not answer.status:
                return
            try:
                self._do(self.supervisor.health(health_of.parse(answer.body)))
            except ValueError as error:
                log.warning("%s answers strangely: %s", record.url, error)

        self.http.get(f"{record.url}/health", answered)

    def _keep_stream(self, now: float) -> None:
        if self._stream or not self._endpoint or now - self._last_stream < STREAM_RETRY_S:
            return
        self._last_stream = now
        interval = 1 if self._watched or self._governed else 10
        url = f"{self._endpoint}/v1/engine/stats/stream?interval={interval}"
        # The server's own token opens this also where it wants a key that the app lacks.
        token = self._record.control_token() if self._record is not None else ""
        stream = self.http.stream(url, token=token)
        stream.arrived.connect(self._take_stats)
        stream.ended.connect(self._lose_stream)
        stream.failed.connect(self._lose_stream)
        self._stream = stream

    def _take_stats(self, data: str) -> None:
        try:
            self.stats = msgspec.json.decode(data, type=Stats)
        except msgspec.MsgspecError as error:
            log.warning("ignoring a stats record: %s", error)
            return
        if (self.stats.state == "ready") != (self.view.phase is Phase.READY):
            self._last_health = -1e9  # the next health is worth asking for at once
        self.stats_changed.emit(self.stats)
        self._replace_other_version(self.stats)

    def _replace_other_version(self, stats: Stats) -> None:
        """After an update the engine of before is still there; one that works is left to do so."""
        if self._look_at_version and self.view.ours:
            self._look_at_version = False
            if not stats.requests_running and not stats.requests_waiting:
                log.info("replacing an idle engine of version %s", self.view.other_version)
                self.restart()

    def _lose_stream(self) -> None:
        self._stream = None

    def _close_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _forget_server(self) -> None:
        self._close_stream()
        self._process = None
        self._record = None
        self._look_at_version = False
        self._last_health = -1e9
        self.stats = Stats(state="stopped")
        self.stats_changed.emit(self.stats)
        if self._endpoint:
            self._endpoint = ""
            self.endpoint_changed.emit("")

    def _publish(self) -> None:
        if self.supervisor.view != self._shown:
            self._shown = self.supervisor.view
            self.view_changed.emit(self._shown)


def _other_version(record: ServerRecord | None) -> str:
    return record.version if record is not None and record.version != __version__ else ""


def _log_size() -> int:
    try:
        return launch.server_log().stat().st_size
    except OSError:
        return 0
