"""When the engine is started, given up, adopted and ended: pure decisions, no process, no clock.

Its owner (app/ui/engine_service.py) tells it what happened and carries out the actions it answers
with. Times are seconds of any clock that only goes forward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

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
    """False for a server that was started by hand: the app uses it and leaves it alone."""
    health: Health | None = None


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
        self._deadline: float | None = None
        self._quick = 0
        self._start_again = False

    @property
    def running(self) -> bool:
        return self.view.phase in RUNNING

    # --- what the person wants ---

    def start(self, *, found: bool = False, found_owned: bool = True) -> list[Action]:
        """Start the engine, or take over the server that was found running."""
        if self.running:
            return []
        self._quick = 0
        self.view = EngineView(reason="", ours=not found or found_owned)
        return self._begin(
            Action.ADOPT if found and found_owned else None if found else Action.SPAWN
        )

    def stop(self) -> list[Action]:
        self._start_again = False
        return self._end()

    def restart(self) -> list[Action]:
        """End the engine and start it with the settings of now."""
        if not self.running:
            return self.start()
        self._start_again = True
        return self._end()

    def dismiss(self) -> list[Action]:
        """The person has read what ended the last engine."""
        self.view = replace(self.view, reason="", hint="")
        return []

    # --- what happened ---

    def adopted(self) -> list[Action]:
        """The running server belongs to this app now."""
        self.view = replace(self.view, adopted=True)
        return []

    def adoption_failed(self, reason: str) -> list[Action]:
        """A server of an app that is gone neither answers nor obeys: it is ended."""
        self.view = replace(self.view, reason=reason)
        self._start_again = True
        return self._kill()

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
        phase = self.view.phase
        if phase is Phase.BACKING_OFF:
            if self.view.retry_at is not None and now >= self.view.retry_at:
                return self._begin(Action.SPAWN)
        elif phase is Phase.STOPPING:
            if self._deadline is not None and now >= self._deadline:
                return self._kill()
        elif self.running:
            return self._watch_silence(now)
        return []

    # --- inside ---

    def _begin(self, action: Action | None) -> list[Action]:
        now = self._clock()
        self._began = self._answered = now
        self._ever_answered = False
        self._deadline = None
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

    def _watch_silence(self, now: float) -> list[Action]:
        silent = now - self._answered
        if not self._ever_answered:
            if silent < FIRST_ANSWER_S:
                return []
            reason = f"The engine server did not answer within {FIRST_ANSWER_S:.0f} s of its start."
        elif silent < SILENT_S:
            return []
        elif silent < HUNG_S or not self.view.ours:
            self.view = replace(self.view, phase=Phase.SILENT)
            return []
        else:
            reason = f"The engine server stopped answering for {HUNG_S:.0f} s and was ended."
        if not self.view.ours:
            self.view = replace(self.view, phase=Phase.SILENT, reason=reason)
            return []
        self._start_again = True
        self.view = replace(self.view, reason=reason)
        return self._kill()

    def _crashed(self, reason: str) -> list[Action]:
        now = self._clock()
        lasted = now - self._began
        crashes = 1 if lasted >= STEADY_S else self.view.crashes + 1
        self._quick = self._quick + 1 if lasted < QUICK_CRASH_S else 0
        if self._quick >= MAX_QUICK_CRASHES:
            self.view = EngineView(phase=Phase.GAVE_UP, reason=reason, crashes=crashes)
            return []
        delay = min(MAX_DELAY_S, 2.0 ** (crashes - 1))
        self.view = EngineView(
            phase=Phase.BACKING_OFF, reason=reason, crashes=crashes, retry_at=now + delay
        )
        return []
