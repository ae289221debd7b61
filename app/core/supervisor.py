"""When the engine is started, given up, adopted and ended: pure decisions, no process, no clock.

Its owner (app/ui/engine_service.py) tells it what happened and carries out the actions it answers
with. Times are seconds of any clock that only goes forward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from app.core.advice import in_settings
from app.core.health import Health

QUICK_CRASH_S = 20.0
"""An engine that ends sooner than this was not of use to anybody."""
MAX_QUICK_CRASHES = 5
"""So many in a row, and trying again needs the person."""
STEADY_S = 300.0
"""An engine that ran so long starts the back-off anew."""
MAX_DELAY_S = 60.0
FIRST_ANSWER_S = 45.0
"""A server answers /health in well under a second; a machine that swaps gets more."""
SILENT_S = 10.0
"""No answer for so long: the window says so."""
HUNG_S = 60.0
"""No answer for so long: it is ended and started again."""
ADOPT_PAUSE_S = 2.0
"""Between two attempts to take a server over."""
GAP_S = 5.0
"""No tick for so long: the machine slept or the app did, so the engine is not to blame."""
STOP_S = 12.0
"""A graceful end may take so long."""


class Phase(StrEnum):
    STOPPED = "stopped"
    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    """The server lives and restarts its runtime."""
    FAILED = "failed"
    """The server lives and could not load the model; its reason is shown."""
    SILENT = "silent"
    BACKING_OFF = "backing_off"
    GAVE_UP = "gave_up"
    STOPPING = "stopping"


class Action(StrEnum):
    SPAWN = "spawn"
    ADOPT = "adopt"
    """Ask the running server to belong to this app."""
    SHUT_DOWN = "shut_down"
    """Ask the server to end."""
    KILL = "kill"


@dataclass(frozen=True)
class EngineView:
    """What the window shows of the engine."""

    phase: Phase = Phase.STOPPED
    reason: str = ""
    """Why it is not running, or why it ran no more before this start."""
    hint: str = ""
    retry_at: float | None = None
    """When the next try comes, in the supervisor's clock."""
    crashes: int = 0
    """In a row, since it last ran steadily."""
    adopted: bool = False
    """It was running when the app came."""
    ours: bool = True
    """False for a server that somebody else started: the app uses it and leaves it alone."""
    adopting: bool = False
    """It belongs to nobody any more, and is asked to belong to this app."""
    other_version: str = ""
    """What version it is, where that is not the app's own."""
    health: Health | None = None

    @property
    def outside(self) -> bool:
        """Whether it is somebody else's, for good."""
        return not self.ours and not self.adopting


RUNNING = frozenset(
    {
        Phase.STARTING,
        Phase.LOADING,
        Phase.READY,
        Phase.RESTARTING,
        Phase.FAILED,
        Phase.SILENT,
        Phase.STOPPING,
    }
)
"""Phases in which a server process is there."""

_OF_HEALTH = {
    "ready": Phase.READY,
    "starting": Phase.LOADING,
    "loading": Phase.LOADING,
    "restarting": Phase.RESTARTING,
    "failed": Phase.FAILED,
    "stopped": Phase.LOADING,
}


class Supervisor:
    """The state machine. Every method returns the actions that follow from it, in order."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.view = EngineView()
        self._began = 0.0
        self._answered = 0.0
        self._ever_answered = False
        self._ticked: float | None = None
        self._deadline: float | None = None
        self._adopt_at: float | None = None
        self._quick = 0
        self._start_again = False

    @property
    def running(self) -> bool:
        return self.view.phase in RUNNING

    # --- what the person wants ---

    def start(
        self, *, found: bool = False, orphaned: bool = False, other_version: str = ""
    ) -> list[Action]:
        """Start the engine, or use the server that was found running: an orphan is taken over."""
        if self.running:
            return []
        self._quick = 0
        if not found:
            self.view = EngineView()
            return self._begin(Action.SPAWN)
        self.view = EngineView(ours=False, adopting=orphaned, other_version=other_version)
        return self._begin(Action.ADOPT if orphaned else None)

    def stop(self) -> list[Action]:
        """A server of somebody else's is left alone."""
        if self.running and not self.view.ours:
            return []
        self._start_again = False
        self.view = replace(self.view, reason="", hint="")
        return self._end()

    def restart(self) -> list[Action]:
        """End the engine and start it with the settings of now, unless it is somebody else's.

        What ended or hindered it before is no news any more.
        """
        if not self.running:
            return self.start()
        if not self.view.ours:
            return []
        self._start_again = True
        self.view = replace(self.view, reason="", hint="")
        return self._end()

    def leave(self) -> list[Action]:
        """Follow a server of somebody else's no more; it runs on."""
        if self.running and self.view.outside:
            self.view = EngineView()
        return []

    def dismiss(self) -> list[Action]:
        """The person has read what ended the last engine."""
        self.view = replace(self.view, reason="", hint="")
        return []

    # --- what happened ---

    def adopted(self) -> list[Action]:
        """The running server belongs to this app now."""
        if self.view.adopting:
            self.view = replace(self.view, ours=True, adopting=False, adopted=True)
        return []

    def adoption_failed(self, reason: str) -> list[Action]:
        """It is asked again. One that serves but goes on to refuse is somebody else's then."""
        if not self.view.adopting:
            return []
        now = self._clock()
        serves = self._ever_answered and now - self._answered < SILENT_S
        if serves and now - self._began >= HUNG_S:
            self.view = replace(self.view, adopting=False, reason=reason)
        else:
            self._adopt_at = now + ADOPT_PAUSE_S
        return []

    def spawn_failed(self, reason: str) -> list[Action]:
        return self._crashed(reason)

    def health(self, health: Health) -> list[Action]:
        if self.view.phase not in RUNNING or self.view.phase is Phase.STOPPING:
            return []
        self._answered = self._clock()
        self._ever_answered = True
        phase = _OF_HEALTH.get(health.status, Phase.LOADING)
        reason, hint = self.view.reason, ""
        if health.error is not None:
            reason, hint = health.error.message, health.error.hint
            if self.view.ours:
                reason, hint = in_settings(reason), in_settings(hint)
        elif phase is Phase.READY and self._clock() - self._began > STEADY_S:
            reason = ""  # what ended the last engine is no news any more
            self._quick = 0
        self.view = replace(self.view, phase=phase, reason=reason, hint=hint, health=health)
        return []

    def exited(self, reason: str, hint: str = "", *, refused: bool = False) -> list[Action]:
        """The server process is gone. `refused`: it said that it cannot run like this."""
        if self.view.phase is Phase.STOPPING:
            again, self._start_again = self._start_again, False
            kept = self.view.reason if again else ""
            self.view = EngineView(reason=kept, crashes=self.view.crashes if again else 0)
            return self._begin(Action.SPAWN) if again else []
        if not self.running:
            return []
        if not self.view.ours:
            self.view = EngineView(reason=reason)
            return []
        if refused:
            self.view = EngineView(phase=Phase.GAVE_UP, reason=reason, hint=hint)
            return []
        return self._crashed(reason)

    def tick(self) -> list[Action]:
        """Call this a few times a second."""
        now = self._clock()
        self._forgive_gap(now)
        phase = self.view.phase
        if phase is Phase.BACKING_OFF:
            if self.view.retry_at is not None and now >= self.view.retry_at:
                return self._begin(Action.SPAWN)
        elif phase is Phase.STOPPING:
            if self._deadline is not None and now >= self._deadline:
                return self._kill()
        elif self.running:
            again = self._adopt_at is not None and now >= self._adopt_at
            if again:
                self._adopt_at = None
            return [Action.ADOPT] * again + self._watch_silence(now)
        return []

    # --- inside ---

    def _begin(self, action: Action | None) -> list[Action]:
        now = self._clock()
        self._began = self._answered = now
        self._ever_answered = False
        self._deadline = self._adopt_at = None
        self.view = replace(
            self.view, phase=Phase.STARTING, retry_at=None, health=None, hint="", adopted=False
        )
        return [action] if action else []

    def _end(self) -> list[Action]:
        if self.view.phase is Phase.STOPPING:
            return []
        if not self.running:
            self.view = EngineView()
            return []
        self._deadline = self._clock() + STOP_S
        self.view = replace(self.view, phase=Phase.STOPPING, health=None, retry_at=None)
        return [Action.SHUT_DOWN]

    def _kill(self) -> list[Action]:
        self._deadline = self._clock() + STOP_S  # ask again should it not work
        self.view = replace(self.view, phase=Phase.STOPPING, health=None, retry_at=None)
        return [Action.KILL]

    def _forgive_gap(self, now: float) -> None:
        """After a sleep every limit begins anew."""
        gap = 0.0 if self._ticked is None else now - self._ticked
        self._ticked = now
        if gap > GAP_S:
            self._began += gap
            self._answered = now
            if self._deadline is not None:
                self._deadline = now + STOP_S

    def _watch_silence(self, now: float) -> list[Action]:
        silent = now - self._answered
        # An orphan nobody else will end; what somebody else started is theirs to end.
        may_end = self.view.ours or self.view.adopting
        if not self._ever_answered and self.view.ours:
            if silent < FIRST_ANSWER_S:
                return []
            reason = f"The engine server did not answer within {FIRST_ANSWER_S:.0f} s of its start."
        elif silent < SILENT_S:
            return []
        elif silent < HUNG_S or not may_end:
            self.view = replace(self.view, phase=Phase.SILENT)
            return []
        else:
            reason = f"The engine server stopped answering for {HUNG_S:.0f} s and was ended."
        self._start_again = True
        self.view = replace(self.view, reason=reason, ours=True, adopting=False)
        return self._kill()

    def _crashed(self, reason: str) -> list[Action]:
        now = self._clock()
        lasted = now - self._began
        crashes = 1 if lasted >= STEADY_S else self.view.crashes + 1
        self._quick = self._quick + 1 if lasted < QUICK_CRASH_S else 0
        if self._quick >= MAX_QUICK_CRASHES:
            self.view = EngineView(phase=Phase.GAVE_UP, reason=reason, crashes=crashes)
            return []
        delay = min(MAX_DELAY_S, 2.0 ** min(crashes - 1, 16))  # a float ends at 2 ** 1024
        self.view = EngineView(
            phase=Phase.BACKING_OFF, reason=reason, crashes=crashes, retry_at=now + delay
        )
        return []
