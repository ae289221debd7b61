"""What the person is told of the governor, and what they can do about it: words, no widgets."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from app.core.governor.arbiter import Memory, State
from app.core.governor.claims import Claim
from app.core.governor.evidence import Missing
from app.core.governor.policy import Mode
from app.core.units import duration, size


class ActionKind(StrEnum):
    UNDO = "undo"
    NEVER = "never"
    AUTO = "auto"
    PAUSE = "pause"
    GIVE_BACK = "give_back"


@dataclass(frozen=True)
class ViewAction:
    kind: ActionKind
    label: str
    program: str = ""
    """Of NEVER, what goes to the list of programs that get no room."""


@dataclass(frozen=True)
class GovernorView:
    """All that a card, a tray menu or a notice shows. Fields are plain and compare by value."""

    state: State = State.IDLE
    mode: Mode = Mode.AUTO
    title: str = "VRAM: automatic"
    cause: str = "No model is loaded into VRAM."
    """A sentence: why the budget is what it is."""
    trouble: str = ""
    """A sentence, where the engine does not do what it is asked for, or figures are missing."""
    budget_bytes: int | None = None
    """None where the engine was not asked for anything."""
    actions: tuple[ViewAction, ...] = ()
    """Beyond the modes."""
    missing: tuple[Missing, ...] = ()
    """Probes that cannot look here, each with its reason."""


@dataclass(frozen=True)
class Dealings:
    """How it goes with the engine and the probes, beside what the arbiter decides."""

    unsupported: bool = False
    failure: str = ""
    silent_s: float = 0.0
    """For so long the probes have not come back; 0: they do."""
    paused_s: float = 0.0
    """Left of the pause."""
    applied_bytes: int = 0
    """What the engine said it may hold, where it has answered to the budget of now; else 0."""


def describe(
    memory: Memory, mode: Mode, dealings: Dealings, missing: tuple[Missing, ...]
) -> GovernorView:
    return GovernorView(
        state=memory.state,
        mode=mode,
        title=_title(mode, dealings),
        cause=cause(memory, dealings.applied_bytes),
        trouble=_trouble(memory, dealings),
        budget_bytes=memory.budget,
        actions=_actions(memory),
        missing=missing,
    )


def cause(memory: Memory, applied_bytes: int = 0) -> str:
    """Why the budget is what it is, in one sentence.

    `applied_bytes`: what the engine made of it, where it has said so; its least may be more.
    """
    held = size(max(memory.budget or 0, applied_bytes))
    if memory.state is State.GAME:
        least = "its least" if memory.at_floor else "less"
        verb = "start" if all(claim.starting for claim in memory.claims) else "run"
        verb = f"{verb}s" if len(memory.claims) == 1 else verb
        return f"{_names(memory.claims)} {verb}: the engine keeps {least}, {held}."
    if memory.state is State.SQUEEZED:
        who = f"{memory.user} and other programs need" if memory.user else "Other programs need"
        keeps = f"{held}, its least" if memory.at_floor else held
        return f"{who} VRAM: the engine keeps {keeps}."
    if memory.state is State.RECOVERING:
        gone = f"{_names(memory.claims)} ended" if memory.claims else "Other programs need less now"
        return f"{gone}: the engine takes VRAM back step by step."
    return {
        State.IDLE: "No model is loaded into VRAM.",
        State.FULL: "No other program needs the engine's VRAM.",
        State.BLIND: "How much VRAM is free is not known: the engine keeps what it has.",
        State.PAUSED: "The engine keeps the VRAM that it has, whatever other programs need.",
        State.GIVEN_BACK: "The engine was asked to give back all VRAM, until you choose Automatic.",
    }[memory.state]


def _names(claims: tuple[Claim, ...]) -> str:
    names = [claim.name for claim in claims]
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _title(mode: Mode, dealings: Dealings) -> str:
    if mode is Mode.PAUSED:
        return f"VRAM: paused for {duration(60 * max(1, round(dealings.paused_s / 60)))}"
    return {Mode.AUTO: "VRAM: automatic", Mode.GIVE_BACK: "VRAM: given back"}[mode]


def _trouble(memory: Memory, dealings: Dealings) -> str:
    if memory.state is State.IDLE:
        return ""
    if dealings.unsupported and memory.budget is not None:
        return "This engine cannot change its VRAM while it runs. To make room, stop it."
    if dealings.failure:
        return f"The engine did not change its VRAM and is asked again: {dealings.failure}"
    if dealings.silent_s:
        return f"The GPU's driver has not answered for {duration(round(dealings.silent_s))}."
    return ""


def _actions(memory: Memory) -> tuple[ViewAction, ...]:
    if memory.state is State.RECOVERING:
        return (ViewAction(ActionKind.UNDO, "Take it back now"),)
    if memory.state not in (State.GAME, State.SQUEEZED):
        return ()
    names = [claim.name for claim in memory.claims] if memory.state is State.GAME else []
    if memory.state is State.SQUEEZED and memory.user:
        names = [memory.user]
    label = "Never for this app" if len(names) == 1 else "Never for {}"
    nevers = (ViewAction(ActionKind.NEVER, label.format(name), name) for name in names)
    return (ViewAction(ActionKind.UNDO, "Undo"), *nevers)
