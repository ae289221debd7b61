"""Who is given room: games, by whatever shows that they are, and what the person has listed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from app.core.governor import ordinary
from app.core.governor.evidence import Program
from app.core.governor.policy import Policy

STARTING_S = 120.0
"""A game gets room before it uses any. One that shows nothing on the GPU for so long is its
launcher, a server or stuck."""
DRAWS_BYTES = 64 << 20
"""Less than this an ordinary window takes, too."""
PLAYS_BYTES = 512 << 20
"""A program that fills the screen and holds so much is taken for a game."""


@dataclass(frozen=True)
class Claim:
    """A game, or a listed program, with all its processes."""

    key: str
    name: str
    """What the person calls it, and what a list of programs knows it by."""
    starting: bool = False
    """It runs, but does not use the GPU yet."""
    by_screen: bool = False
    """Only what it shows on the screen tells that it plays."""


def key_of(program: Program) -> str:
    """The same for all processes of one game; else of this process alone."""
    if program.game:
        return f"{program.library}/{program.game}"
    return f"{program.pid}@{program.started:.0f}"


def claims(
    programs: Iterable[Program], policy: Policy, *, accused: frozenset[str], growing: bool
) -> tuple[Claim, ...]:
    """Of these programs, those that are given room; each once, in the order of `programs`.

    `accused` has the keys of what claimed room as a fullscreen program once: the focus may be
    elsewhere now. `growing`: VRAM outside the engine has just grown as it does for a game.
    """
    groups: dict[str, list[Program]] = {}
    for program in programs:
        beside = bool(program.game) and ordinary.is_helper(program.name)
        if not beside and not policy.refuses(program):
            groups.setdefault(key_of(program), []).append(program)
    found = []
    for key, group in groups.items():
        draws = [_draws(program) for program in group]
        young = min(program.age_s for program in group) < STARTING_S
        told = any(program.game_mode or policy.wants_room(program) for program in group)
        # Where nothing tells who draws, a game that runs is one that plays.
        game = any(_is_game(program) for program in group)
        plays = game and (young or any(draws) or all(one is None for one in draws))
        fullscreen = key in accused or any(_plays_fullscreen(one, growing) for one in group)
        if told or plays or fullscreen:
            starting = young and not any(draws) and None not in draws
            by_screen = not (told or plays)
            found.append(Claim(key, group[0].game or group[0].name, starting, by_screen))
    return tuple(found)


def _is_game(program: Program) -> bool:
    return bool(program.game) and not ordinary.is_tool(program.game)


def _draws(program: Program) -> bool | None:
    """Whether it is at work on the GPU; None where nothing tells."""
    if program.fullscreen or program.exclusive:
        return True
    if program.vram_bytes is not None:
        return program.vram_bytes >= DRAWS_BYTES
    return program.on_gpu


def _plays_fullscreen(program: Program, growing: bool) -> bool:
    if program.exclusive:
        return not ordinary.fills_screens(program.name)
    if not program.fullscreen or ordinary.fills_screens(program.name) or program.on_gpu is False:
        return False
    if program.vram_bytes is not None:
        return program.vram_bytes >= PLAYS_BYTES
    return growing
