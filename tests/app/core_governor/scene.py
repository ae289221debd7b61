"""Plays a scene: other programs by their script, a simulated engine, the real loop, a fake clock.

A scene is a YAML file; `Scene` has its fields. Memory is in GiB, time in seconds. A curve is a list
of [time, value] with straight lines between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml

from app.core.governor.budget import BudgetAnswer, BudgetRequest, Outcome
from app.core.governor.evidence import Engine, Evidence, Gpu, Missing, Program
from app.core.governor.loop import GovernorLoop
from app.core.governor.policy import GIB, Mode, Policy
from app.core.governor.view import GovernorView

TICK_S = 0.25
EPOCH_S = 1_800_000_000.0
"""When the scenes play, in seconds since 1970."""

Curve = list[tuple[float, float]]


class Actor(msgspec.Struct, forbid_unknown_fields=True):
    """A program of the scene."""

    name: str
    at: tuple[float, float | None] = (0.0, None)
    """From when to when it runs; started long ago where it is there at the beginning."""
    game: str = ""
    library: str = ""
    path: str = ""
    game_mode: bool = False
    vram: Curve | None = None
    """None: the system does not tell."""
    on_gpu: tuple[float, float] | None = None
    """From when to when the driver lists it; never, where it is not said."""
    fullscreen: list[tuple[float, float]] = []
    exclusive: bool = False
    pid: int = 0


class EngineScript(msgspec.Struct, forbid_unknown_fields=True):
    wants: float
    floor: float
    least: float = 0.0
    """What it keeps at least, where that is more than the floor that its figures tell."""
    holds: float | None = None
    """At its start; all that it wants, where that is not said."""
    context: float = 0.4
    """VRAM of its process that it does not account for."""
    lag: float = 0.5
    """Seconds until a budget is applied."""
    runs: tuple[tuple[float, float], ...] = ((0.0, 1e9),)
    """From when to when; each time it is another runtime."""
    figures_every: float = 1.0
    """Its own figures are as old as that."""
    answers: str = "applied"
    """or unsupported, failed"""


class Expectation(msgspec.Struct, forbid_unknown_fields=True):
    at: float
    state: str = ""
    budget: float | None = None
    within: float = 0.1
    """Tolerance of the budget."""
    held: float | None = None
    free: float | None = None
    """At least so much is free."""
    says: str = ""
    """Words in cause, title or trouble."""
    asked: int | None = None
    """So many times the engine was asked for something, until now."""


class Scene(msgspec.Struct, forbid_unknown_fields=True):
    about: str
    total: float
    engine: EngineScript
    others: Curve
    """VRAM of all others together, whatever the system tells of each."""
    expect: list[Expectation]
    programs: list[Actor] = []
    lists_processes: bool = True
    """Whether the driver tells who uses the GPU, as on Linux."""
    lost: list[tuple[float, float]] = []
    """From when to when the GPU's figures cannot be had."""
    sleeps: list[tuple[float, float]] = []
    """(when, for how long) the machine sleeps: nobody ticks."""
    does: list[tuple[float, str]] = []
    """What the person does: auto, pause, give_back, undo, never NAME."""
    always: list[str] = []
    never: list[str] = []
    headroom: float = 0.0


def load(path: Path) -> Scene:
    return msgspec.convert(yaml.safe_load(path.read_text(encoding="utf-8")), Scene)


def value(curve: Curve, at: float) -> float:
    before = [point for point in curve if point[0] <= at]
    after = [point for point in curve if point[0] > at]
    if not before or not after:
        return (before[-1] if before else after[0])[1]
    (t0, v0), (t1, v1) = before[-1], after[0]
    return v0 + (v1 - v0) * (at - t0) / (t1 - t0)


def within(at: float, spans: list[tuple[float, float]]) -> bool:
    return any(begin <= at < end for begin, end in spans)


@dataclass
class Frame:
    """What was so at one tick."""

    at: float
    view: GovernorView
    held: float
    free: float
    asked: int


@dataclass
class Stage:
    """The system that a scene plays on: evidence source, budget client and engine in one."""

    scene: Scene
    now: float = 0.0
    held: float = 0.0
    run: int = -1
    pending: list[tuple[float, int]] = field(default_factory=list)
    asked: list[tuple[float, float]] = field(default_factory=list)
    """(when, GiB) of every request."""
    figures: tuple[float, float] = (-1e9, 0.0)
    never: list[str] = field(default_factory=list)
    rested: int = 0
    looks: int = 0
    answered: Callable[[BudgetAnswer], None] = lambda answer: None
    _seen: Evidence | None = None

    # --- the engine ---

    def advance(self, now: float) -> None:
        self.now = now
        script = self.scene.engine
        runs = [number for number, span in enumerate(script.runs) if within(now, [span])]
        run = runs[0] if runs else -1
        if run != self.run:
            self.run, self.pending = run, []
            self.held = (script.wants if script.holds is None else script.holds) if runs else 0.0
            self.figures = (-1e9, 0.0)
        for due, budget in list(self.pending):
            if due <= now:
                self.pending.remove((due, budget))
                granted = min(script.wants, budget / GIB)
                self.held = max(granted, script.floor if budget else 0.0, script.least)
                self.answered(BudgetAnswer(Outcome.APPLIED, max(budget, round(self.held * GIB))))
        if now - self.figures[0] >= script.figures_every:
            self.figures = (now, self.held)

    def engine(self) -> Engine | None:
        if self.run < 0:
            return None
        taken, held = self.figures
        return Engine(
            identity=f"run {self.run}",
            pid=1000 + self.run,
            held_bytes=round(held * GIB),
            floor_bytes=round(self.scene.engine.floor * GIB),
            age_s=self.now - taken,
        )

    def send(self, request: BudgetRequest, answered: Callable[[BudgetAnswer], None]) -> None:
        script = self.scene.engine
        self.asked.append((self.now, request.vram_bytes / GIB))
        if script.answers == "applied":
            self.pending.append((self.now + script.lag, request.vram_bytes))
            self.answered = answered
        else:
            answered(BudgetAnswer(Outcome(script.answers), why="It is busy."))

    # --- the GPU and the programs ---

    def used(self) -> float:
        mine = self.held + (self.scene.engine.context if self.run >= 0 else 0.0)
        return min(self.scene.total, value(self.scene.others, self.now) + mine)

    def begin(self, now: float, engine: Engine, policy: Policy) -> None:
        scene = self.scene
        self.looks += 1
        lost = within(now, scene.lost)
        gpu = None
        if not lost:
            gpu = Gpu(total_bytes=round(scene.total * GIB), used_bytes=round(self.used() * GIB))
        self._seen = Evidence(
            at=now,
            gpu=gpu,
            engine=engine,
            programs=tuple(self._programs(now)),
            missing=(Missing(probe="NVML", why="The GPU is lost."),) if lost else (),
        )

    def result(self) -> Evidence | None:
        seen, self._seen = self._seen, None
        return seen

    def rest(self) -> None:
        self.rested += 1

    def policy(self) -> Policy:
        scene = self.scene
        return Policy(
            always=tuple(scene.always),
            never=(*scene.never, *self.never),
            headroom_bytes=round(scene.headroom * GIB),
        )

    def _programs(self, now: float) -> Iterator[Program]:
        for number, actor in enumerate(self.scene.programs):
            begin, end = actor.at
            if not begin <= now < (end if end is not None else 1e9):
                continue
            started = begin if begin > 0 else -86400.0
            fullscreen = within(now, actor.fullscreen)
            listed = actor.on_gpu is not None and within(now, [actor.on_gpu])
            vram = None if actor.vram is None else round(value(actor.vram, now) * GIB)
            yield Program(
                pid=actor.pid or 2000 + number,
                started=EPOCH_S + started,
                age_s=now - started,
                name=actor.name,
                path=actor.path,
                game=actor.game,
                library=actor.library,
                game_mode=actor.game_mode,
                fullscreen=fullscreen,
                exclusive=fullscreen and actor.exclusive,
                on_gpu=listed if self.scene.lists_processes else None,
                vram_bytes=vram,
            )


def play(scene: Scene, tick_s: float = TICK_S) -> tuple[list[Frame], Stage]:
    """Every tick of the scene until a second after its last expectation."""
    stage = Stage(scene)
    loop = GovernorLoop(stage, stage, stage.engine, stage.policy)
    frames, todo = [], sorted(scene.does)
    now, last = 0.0, max(one.at for one in scene.expect) + 1.0
    sleeps = sorted(scene.sleeps)
    while now <= last:
        if sleeps and now >= sleeps[0][0]:
            now += sleeps.pop(0)[1]
        stage.advance(now)
        while todo and todo[0][0] <= now:
            act(loop, stage, todo.pop(0)[1])
        loop.tick(now)
        free = scene.total - stage.used()
        frames.append(Frame(now, loop.view, stage.held, free, len(stage.asked)))
        now += tick_s
    return frames, stage


def act(loop: GovernorLoop, stage: Stage, deed: str) -> None:
    word, _, name = deed.partition(" ")
    modes: dict[str, Any] = {
        "auto": Mode.AUTO,
        "pause": Mode.PAUSED,
        "give_back": Mode.GIVE_BACK,
    }
    if word == "undo":
        loop.undo()
    elif word == "never":
        stage.never.append(name)
        loop.look_now()
    else:
        loop.set_mode(modes[word])
