"""The governor at work: looks when it is time to, decides, and asks the engine for the budget.

It has no thread and no clock: whoever owns it calls `tick` a few times a second.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from app.core.governor import arbiter
from app.core.governor.arbiter import Memory, State
from app.core.governor.budget import BudgetAnswer, BudgetClient, BudgetRequest, Outcome
from app.core.governor.evidence import Engine, Evidence, Missing, Program
from app.core.governor.policy import Mode, Policy
from app.core.governor.view import Dealings, GovernorView, cause, describe
from app.core.units import size

log = logging.getLogger(__name__)

PACE_S = 1.0
"""Between two looks while the engine holds VRAM."""
CALM_S = 5.0
"""The same while the person has said what holds: nothing is decided by what is seen."""
SILENT_S = 5.0
"""A look that takes so long is told: the driver may hang in a reset."""
PAUSE_S = 3600.0
FIRST_RETRY_S, LAST_RETRY_S = 1.0, 60.0


class EvidenceSource(Protocol):
    """Looks at the system, elsewhere: nothing here waits for a driver."""

    def begin(self, now: float, engine: Engine, policy: Policy) -> None:
        """Look once. Not called again before `result` has given what was seen."""

    def result(self) -> Evidence | None:
        """What was seen, once; None while the look goes on."""

    def rest(self) -> None:
        """Let go of everything that keeps a GPU awake."""


@dataclass
class _Exchange:
    """What the engine was asked for last, and how that went."""

    engine: str = ""
    acknowledged: int | None = None
    waiting: bool = False
    answer: BudgetAnswer | None = None
    """Not looked at yet."""
    applied: tuple[float, int] | None = None
    """When the engine last answered, and what it may hold since."""
    failure: str = ""
    unsupported: bool = False
    retry_at: float = 0.0
    delay_s: float = FIRST_RETRY_S


class GovernorLoop:
    def __init__(
        self,
        source: EvidenceSource,
        client: BudgetClient,
        engine: Callable[[], Engine | None],
        policy: Callable[[], Policy],
    ) -> None:
        """`engine` tells its figures of now, None while it holds no VRAM; `policy` the settings,
        whose mode is not looked at: it is the loop's own."""
        self._source = source
        self._client = client
        self._engine = engine
        self._policy = policy
        self._mode = Mode.AUTO
        self._paused_until = 0.0
        self._now = 0.0
        self._looking_since: float | None = None
        self._looked_at: float | None = None
        self._disturbed = False
        """Whether the engine may have resized while it was looked at the GPU."""
        self._resting = True
        self._missing: tuple[Missing, ...] = ()
        self._exchange = _Exchange()
        self.memory = Memory()
        self.programs: tuple[Program, ...] = ()
        """What may want the GPU, as it was seen last; none while the engine holds no VRAM."""

    @property
    def mode(self) -> Mode:
        return self._mode

    @property
    def view(self) -> GovernorView:
        exchange = self._exchange
        since = self._looking_since
        silent = 0.0 if since is None else self._now - since
        answered = exchange.acknowledged == self.memory.budget and exchange.applied
        dealings = Dealings(
            applied_bytes=answered[1] if answered else 0,
            unsupported=exchange.unsupported,
            failure=exchange.failure,
            silent_s=silent if silent > SILENT_S else 0.0,
            paused_s=max(0.0, self._paused_until - self._now),
        )
        return describe(self.memory, self._mode, dealings, self._missing)

    def set_mode(self, mode: Mode) -> None:
        """A pause lasts an hour from now."""
        self._mode = mode
        self._paused_until = self._now + PAUSE_S
        self._looked_at = None

    def undo(self) -> None:
        """Give the engine back what it held, until what it was taken for is gone."""
        self.memory = arbiter.undo(self.memory)
        self._looked_at = None

    def look_now(self) -> None:
        """The settings or the engine have changed."""
        self._looked_at = None

    def tick(self, now: float) -> None:
        """Call this a few times a second, with seconds of a clock that only goes forward."""
        self._now = now
        if self._mode is Mode.PAUSED and now >= self._paused_until:
            self.set_mode(Mode.AUTO)
        self._take_answer(now)
        engine = self._newest(self._engine())
        self._take_evidence(engine)
        if engine is None:
            self._rest(now)
            return
        if engine.identity != self._exchange.engine:
            self._exchange = _Exchange(engine=engine.identity)
            self._looked_at = None
        if self._mode is Mode.GIVE_BACK and self.memory.state is not State.GIVEN_BACK:
            self._decide(Evidence(at=now, engine=engine))  # nothing has to be seen for that
        self._look(now, engine)
        self._ask(now)

    def _newest(self, engine: Engine | None) -> Engine | None:
        """The engine's figures, and its last answer where that is newer."""
        exchange = self._exchange
        if engine is None or engine.identity != exchange.engine:
            return engine
        if exchange.waiting:
            return msgspec.structs.replace(engine, settled=False)
        at, most = exchange.applied or (-math.inf, 0)
        if self._now - engine.age_s > at:
            return engine
        if most > engine.held_bytes:  # it may have grown since
            return msgspec.structs.replace(engine, settled=False)
        return msgspec.structs.replace(engine, held_bytes=most, age_s=self._now - at)

    # --- looking ---

    def _look(self, now: float, engine: Engine) -> None:
        pace = PACE_S if self._mode is Mode.AUTO else CALM_S
        due = self._looked_at is None or not 0 <= now - self._looked_at < pace
        if self._looking_since is None and due:
            self._looking_since = self._looked_at = now
            self._resting = self._disturbed = False
            self._source.begin(now, engine, self._wanted())

    def _take_evidence(self, engine: Engine | None) -> None:
        if self._looking_since is None:
            return
        evidence = self._source.result()
        if evidence is None:
            return
        self._looking_since = None
        seen = evidence.engine
        if seen is None or engine is None or seen.identity != engine.identity:
            return  # of an engine that is gone
        if self._disturbed:
            seen = msgspec.structs.replace(seen, settled=False)
        self._tell_missing(evidence.missing)
        self.programs = evidence.programs
        self._decide(msgspec.structs.replace(evidence, engine=seen))

    def _decide(self, evidence: Evidence) -> None:
        before = self.memory
        self.memory = arbiter.decide(before, evidence, self._wanted())
        if (before.state, before.budget) != (self.memory.state, self.memory.budget):
            log.info("%s: %s", self.memory.state.value, cause(self.memory))

    def _wanted(self) -> Policy:
        settings = self._policy()
        return Policy(self._mode, settings.always, settings.never, settings.headroom_bytes)

    def _tell_missing(self, missing: tuple[Missing, ...]) -> None:
        for one in missing:
            if one not in self._missing:
                log.info("%s: not available: %s", one.probe, one.why)
        self._missing = missing

    def _rest(self, now: float) -> None:
        self.programs = ()
        if self.memory.state is not State.IDLE:
            self._decide(Evidence(at=now))
        self._exchange = _Exchange()
        if not self._resting and self._looking_since is None:
            self._resting = True
            self._looked_at = None
            self._source.rest()

    # --- asking ---

    def _ask(self, now: float) -> None:
        exchange, budget = self._exchange, self.memory.budget
        if budget is None or budget == exchange.acknowledged or self._looking_at_another():
            return
        if exchange.waiting or exchange.unsupported or now < exchange.retry_at:
            return
        exchange.waiting = self._disturbed = True

        def answered(answer: BudgetAnswer) -> None:
            exchange.answer = answer  # of an engine that is gone by then, nobody looks at it
            if answer.outcome is Outcome.APPLIED:
                exchange.acknowledged = budget

        self._client.send(BudgetRequest(vram_bytes=budget, cause=cause(self.memory)), answered)

    def _looking_at_another(self) -> bool:
        """Whether what is remembered is of an engine before this one."""
        return self.memory.engine != self._exchange.engine

    def _take_answer(self, now: float) -> None:
        exchange = self._exchange
        answer, exchange.answer = exchange.answer, None
        if answer is None:
            return
        exchange.waiting, self._disturbed = False, True
        exchange.unsupported = answer.outcome is Outcome.UNSUPPORTED
        exchange.failure = answer.why
        if answer.outcome is Outcome.APPLIED:
            exchange.delay_s, exchange.retry_at = FIRST_RETRY_S, now
            exchange.applied = (now, answer.applied_bytes)
            log.info("the engine may hold %s now %s", size(answer.applied_bytes), answer.state)
        else:
            log.warning("the engine's VRAM stays: %s %s", answer.outcome.value, answer.why)
            exchange.retry_at = now + exchange.delay_s
            exchange.delay_s = min(2 * exchange.delay_s, LAST_RETRY_S)
