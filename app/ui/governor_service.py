"""The governor with hands: ticks it, carries its requests to the engine, keeps its lists."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import msgspec
from PySide6.QtCore import QObject, Signal

from app.core.governor.budget import BudgetAnswer, BudgetRequest, read_answer
from app.core.governor.engine_figures import engine_of
from app.core.governor.evidence import Engine
from app.core.governor.loop import GovernorLoop
from app.core.governor.policy import Mode, Policy
from app.core.governor.sampler import Sampler, ThreadSource
from app.core.governor.view import ActionKind, GovernorView, ViewAction
from app.core.settings import Settings
from app.ui.engine_service import EngineService
from app.ui.http import Answer
from app.ui.settings_store import SettingsStore
from engine.messages import Stats

log = logging.getLogger(__name__)

_MODES = {
    ActionKind.AUTO: Mode.AUTO,
    ActionKind.PAUSE: Mode.PAUSED,
    ActionKind.GIVE_BACK: Mode.GIVE_BACK,
}


class GovernorService(QObject):
    view_changed = Signal(object)
    """GovernorView"""
    programs_changed = Signal(object)
    """tuple[Program, ...]: who else may use the GPU, as it was seen last."""

    def __init__(
        self,
        engine: EngineService,
        store: SettingsStore,
        clock: Callable[[], float] = time.monotonic,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._engine = engine
        self._store = store
        self._clock = clock
        self._figures_at = -1e9
        self._source = ThreadSource(Sampler())
        self._loop = GovernorLoop(self._source, self, self._figures, self._policy)
        self.view = self._loop.view
        self._programs = self._loop.programs
        engine.stats_changed.connect(self._take_stats)
        engine.ticked.connect(self._tick)
        store.changed.connect(self._settings_changed)

    def act(self, action: ViewAction) -> None:
        """Do what the person has chosen."""
        if action.kind is ActionKind.UNDO:
            self._loop.undo()
        elif action.kind is ActionKind.NEVER:
            never = self._store.now.vram_never
            self._store.update(vram_never=(*never, action.program))
            self._loop.undo()
        else:
            self._loop.set_mode(_MODES[action.kind])
        self._tick()

    def send(self, request: BudgetRequest, answered: Callable[[BudgetAnswer], None]) -> None:
        """For the loop: ask the engine for this budget."""

        def told(answer: Answer) -> None:
            answered(read_answer(answer.status, answer.body, answer.error))

        self._engine.ask_for_budget(msgspec.json.encode(request), told)

    def close(self) -> None:
        """Let go of what the probes hold. The object is of no use afterwards."""
        self._engine.ticked.disconnect(self._tick)
        self._source.rest()

    def _take_stats(self, _: Stats) -> None:
        self._figures_at = self._clock()

    def _figures(self) -> Engine | None:
        age = max(0.0, self._clock() - self._figures_at)
        return engine_of(self._engine.stats, age, str(self._engine.server_pid))

    def _policy(self) -> Policy:
        return policy_of(self._store.now)

    def _settings_changed(self, before: Settings, now: Settings) -> None:
        if policy_of(before) != policy_of(now):
            self._loop.look_now()

    def _tick(self) -> None:
        self._loop.tick(self._clock())
        self._engine.set_governed(self._figures() is not None)
        view: GovernorView = self._loop.view
        if view != self.view:
            self.view = view
            self.view_changed.emit(view)
        if self._loop.programs != self._programs:
            self._programs = self._loop.programs
            self.programs_changed.emit(self._programs)


def policy_of(settings: Settings) -> Policy:
    return Policy(
        always=settings.vram_always,
        never=settings.vram_never,
        headroom_bytes=settings.vram_headroom_mib << 20,
    )
