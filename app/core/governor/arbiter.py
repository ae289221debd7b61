"""How much VRAM the engine may hold, and why: a pure function of memory, evidence and policy.

Down at once, to the floor for a game and as far as needed for other programs; up in steps, when
nothing has pressed for a while. It never raises the budget into the headroom, nor into what other
programs used at their most within the last minute, so it does not swing with them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from app.core.governor.claims import Claim, claims, key_of
from app.core.governor.evidence import Engine, Evidence, Gpu
from app.core.governor.policy import Mode, Policy

MIB = 1 << 20
GROWTH_S = 5.0
GROWTH_BYTES = 512 * MIB
"""Growth by so much within GROWTH_S is expected to go on for as long again."""
PRESSED_SHARE = 0.75
"""Of the headroom: with less free than that the budget falls, and all of it is free again."""
QUIET_S = 60.0
"""After the last pressure, before the budget rises; others' peak is kept for as long."""
PATIENCE_S = 600.0
"""Quiet that is asked for at most, where the budget had to fall soon after it rose."""
SOON_S = 300.0
STEP_S = 20.0
"""Between two rises."""
STEP_SHARE = 0.25
"""Of the GPU's memory, a rise at most."""
WORTH_BYTES = 256 * MIB
"""A smaller change is not worth a resize. Also what a rise leaves free beside the headroom."""
ROUND_BYTES = 32 * MIB
"""The pieces in which the engine holds memory."""
SETTLE_S = 10.0
"""An engine that has not taken what it may hold for so long wants no more."""
STALE_S = 5.0
"""The engine's own figures are trusted for so long."""
GAP_S = 15.0
"""No evidence for so long: the machine slept, and what was seen before counts no more."""
LENIENT_S = 900.0
"""For so long after an Undo the headroom is not defended."""
RESERVE_BYTES = 256 * MIB
"""What stays free also where the person wants everything back."""


class State(StrEnum):
    IDLE = "idle"
    """No engine that holds VRAM."""
    FULL = "full"
    """The engine has what it wants, or all that is there."""
    SQUEEZED = "squeezed"
    """Other programs need VRAM."""
    GAME = "game"
    RECOVERING = "recovering"
    """What pressed is gone; the budget rises soon."""
    BLIND = "blind"
    """The GPU's figures cannot be had: the budget stays."""
    PAUSED = "paused"
    GIVEN_BACK = "given_back"


@dataclass(frozen=True)
class Memory:
    """All that the arbiter remembers from one piece of evidence to the next, and its decision."""

    state: State = State.IDLE
    budget: int | None = None
    """Bytes that the engine may hold; None: it was not asked for anything yet."""
    claims: tuple[Claim, ...] = ()
    """What has the room now; in RECOVERING what had it."""
    user: str = ""
    """Of other programs, the one that is known to hold most VRAM."""
    outside: int | None = None
    """VRAM that is not the engine's, where that is known: the lesser of the last two looks, since
    the GPU's figures may be of after a resize and the engine's of before."""
    looked: int | None = None
    """The last look alone."""
    at_floor: bool = False
    """The engine can give no more."""
    at: float = -math.inf
    engine: str = ""
    wanted: int = 0
    """The most that this engine has held; Undo goes back to it."""
    pressed_at: float = -math.inf
    pressed_by: int = 0
    """What was outside at the last pressure by other programs."""
    raised_at: float = -math.inf
    patience_s: float = QUIET_S
    seen: tuple[tuple[float, int], ...] = ()
    """(time, outside) of the last QUIET_S."""
    accused: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()
    """Keys of claims that the person has undone, until they are gone."""
    lenient_until: float = -math.inf
    restore: bool = False
    """The person wants the VRAM back at once."""


def decide(memory: Memory, evidence: Evidence, policy: Policy) -> Memory:
    """The memory, and in it the decision, after this evidence."""
    engine = evidence.engine
    if engine is None:
        kept = Memory(ignored=memory.ignored, lenient_until=memory.lenient_until)
        return replace(kept, at=evidence.at)
    memory = _observe(memory, evidence, engine)
    if policy.mode is Mode.GIVE_BACK:
        return replace(memory, state=State.GIVEN_BACK, budget=0, claims=(), restore=False)
    if memory.state is State.GIVEN_BACK:
        memory = replace(memory, restore=True)
    if policy.mode is Mode.PAUSED:
        if memory.restore:
            memory = _restored(memory, evidence.gpu, engine, policy)
        return replace(memory, state=State.PAUSED, claims=())
    return _govern(memory, evidence, engine, policy)


def undo(memory: Memory) -> Memory:
    """Give the engine back what it held; what it was taken for is not heeded until it is gone."""
    keys = frozenset(claim.key for claim in memory.claims)
    if memory.state is State.GAME:
        return replace(memory, ignored=memory.ignored | keys, restore=True)
    if memory.state is State.SQUEEZED:
        return replace(memory, lenient_until=memory.at + LENIENT_S, restore=True)
    if memory.state is State.RECOVERING:
        return replace(memory, restore=True)
    return memory


def _observe(memory: Memory, evidence: Evidence, engine: Engine) -> Memory:
    at = evidence.at
    if engine.identity != memory.engine:
        memory = Memory(
            engine=engine.identity,
            pressed_at=at,
            accused=memory.accused,
            ignored=memory.ignored,
            lenient_until=memory.lenient_until,
        )
    elif not 0 <= at - memory.at <= GAP_S:
        memory = replace(memory, seen=(), looked=None, pressed_at=at, raised_at=-math.inf)
    # Figures of before a resize would make the engine's own memory look like another program's.
    looked = outside = None
    if evidence.gpu is not None and engine.age_s <= STALE_S and engine.settled:
        looked = max(0, evidence.gpu.used_bytes - engine.held_bytes)
        outside = looked if memory.looked is None else min(looked, memory.looked)
    seen = tuple(entry for entry in memory.seen if at - entry[0] <= QUIET_S)
    if outside is not None:
        seen = (*seen, (at, outside))
    others = [p for p in evidence.programs if p.vram_bytes and p.pid != engine.pid]
    most = max(others, key=lambda program: program.vram_bytes or 0, default=None)
    return replace(
        memory,
        at=at,
        outside=outside,
        looked=looked,
        seen=seen,
        user=(most.game or most.name) if most else "",
        wanted=max(memory.wanted, engine.held_bytes),
    )


def _govern(memory: Memory, evidence: Evidence, engine: Engine, policy: Policy) -> Memory:
    present = frozenset(key_of(program) for program in evidence.programs)
    memory = replace(memory, accused=memory.accused & present, ignored=memory.ignored & present)
    growth = _growth(memory)
    found = claims(
        (program for program in evidence.programs if program.pid != engine.pid),
        policy,
        accused=memory.accused,
        growing=growth >= GROWTH_BYTES,
    )
    found = tuple(claim for claim in found if claim.key not in memory.ignored)
    if found:
        keys = frozenset(claim.key for claim in found if claim.by_screen)
        memory = replace(memory, claims=found, accused=memory.accused | keys)
        return _lower(memory, engine, engine.floor_bytes, State.GAME)
    if memory.restore:
        memory = _restored(memory, evidence.gpu, engine, policy)
    gpu = evidence.gpu
    if gpu is None:
        return replace(memory, state=State.BLIND, claims=(), pressed_at=memory.at)
    lenient = evidence.at < memory.lenient_until
    missing = 0 if lenient else _missing(evidence, gpu, policy, growth)
    if missing > 0:
        # If the engine has grown since its figures, that is more than is missing: the safe side.
        outside = max(0, gpu.used_bytes - engine.held_bytes)
        memory = replace(memory, claims=(), pressed_by=outside)
        return _lower(memory, engine, engine.held_bytes - missing, State.SQUEEZED)
    return _rise(memory, gpu, engine, policy)


def _growth(memory: Memory) -> int:
    """By how much other programs' VRAM has grown within GROWTH_S."""
    if memory.outside is None:
        return 0
    lowest = min(used for at, used in memory.seen if memory.at - at <= GROWTH_S)
    return memory.outside - lowest


def _missing(evidence: Evidence, gpu: Gpu, policy: Policy, growth: int) -> int:
    """Bytes that the headroom lacks, or will lack soon; 0 while there is no need to act."""
    refused = sum(p.vram_bytes or 0 for p in evidence.programs if policy.refuses(p))
    free = gpu.total_bytes - gpu.used_bytes + refused
    if growth >= GROWTH_BYTES:
        free -= min(growth, gpu.total_bytes // 8)
    headroom = policy.headroom(gpu.total_bytes)
    return headroom - free if free < PRESSED_SHARE * headroom else 0


def _lower(memory: Memory, engine: Engine, target: int, state: State) -> Memory:
    target = max(target // ROUND_BYTES * ROUND_BYTES, engine.floor_bytes, 0)
    now = engine.held_bytes if memory.budget is None else memory.budget
    now = max(now, engine.floor_bytes)  # everything may have been given back before
    budget, patience = memory.budget, memory.patience_s
    # A floor that moves a little while a game runs is not worth a resize each time.
    trifle = state is memory.state is State.GAME and target + WORTH_BYTES > now
    if budget is None or not trifle:
        budget = min(target, now)
    if memory.state not in (State.GAME, State.SQUEEZED) and memory.at - memory.raised_at < SOON_S:
        patience = min(2 * patience, PATIENCE_S)
    return replace(
        memory,
        state=state,
        budget=budget,
        at_floor=target <= engine.floor_bytes,
        pressed_at=memory.at,
        patience_s=patience,
        restore=False,
    )


def _rise(memory: Memory, gpu: Gpu, engine: Engine, policy: Policy) -> Memory:
    quiet = memory.at - memory.pressed_at
    patience = QUIET_S if quiet > PATIENCE_S else memory.patience_s
    memory = replace(memory, patience_s=patience, at_floor=False)
    now = engine.held_bytes if memory.budget is None else memory.budget
    settled = memory.at - memory.raised_at > SETTLE_S
    if now + WORTH_BYTES >= memory.wanted or (settled and engine.held_bytes + WORTH_BYTES < now):
        state = State.FULL  # it has what it had at its most, or wants no more
    elif memory.state is State.SQUEEZED and not _relieved(memory):
        state = State.SQUEEZED
    else:
        state = State.RECOVERING
    if memory.outside is not None:
        limit = gpu.total_bytes - policy.headroom(gpu.total_bytes) - WORTH_BYTES
        if state is State.RECOVERING and limit - memory.outside < now + WORTH_BYTES:
            state = State.SQUEEZED
        room = limit - max(used for _, used in memory.seen)
        wants_more = not settled or engine.held_bytes + WORTH_BYTES >= now
        paced = quiet >= patience and memory.at - memory.raised_at >= STEP_S
        if wants_more and paced and room - now >= WORTH_BYTES:
            step = max(WORTH_BYTES, round(STEP_SHARE * gpu.total_bytes))
            budget = min(room, now + step) // ROUND_BYTES * ROUND_BYTES
            memory = replace(memory, budget=budget, raised_at=memory.at)
    return replace(memory, state=state, claims=memory.claims if state is not State.FULL else ())


def _relieved(memory: Memory) -> bool:
    """Whether other programs have let go of a part of what they pressed for."""
    return memory.outside is not None and memory.outside + WORTH_BYTES < memory.pressed_by


def _restored(memory: Memory, gpu: Gpu | None, engine: Engine, policy: Policy) -> Memory:
    """The budget of before, as far as there is memory for it; nobody had to wait for that."""
    budget = memory.wanted
    if gpu is not None:
        lenient = memory.at < memory.lenient_until
        keep = RESERVE_BYTES if lenient else policy.headroom(gpu.total_bytes)
        budget = min(budget, engine.held_bytes + gpu.total_bytes - gpu.used_bytes - keep)
    budget = max(budget // ROUND_BYTES * ROUND_BYTES, engine.floor_bytes, memory.budget or 0)
    return replace(memory, budget=budget, raised_at=memory.at, restore=False, claims=())
