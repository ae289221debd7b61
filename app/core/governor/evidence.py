"""What is known at one moment: the GPU, the engine, and the programs that may want the GPU.

These records are all that the arbiter sees, and `record` writes them as lines of JSON. They only
gain fields.
"""

from __future__ import annotations

import msgspec


class Gpu(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The engine's GPU, all programs together."""

    total_bytes: int
    used_bytes: int


class Engine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The engine's own figures; there are none while it holds no VRAM."""

    identity: str
    """Changes when the runtime is started anew, and with it whatever it was asked for."""
    pid: int = 0
    held_bytes: int
    """What it accounts for. A CUDA context beside that counts as another program's."""
    floor_bytes: int = 0
    """The least that it can work with: all of `held_bytes` but most expert slots."""
    age_s: float = 0.0
    """How old these figures are."""
    settled: bool = True
    """False while it may be resizing, or has since: it may hold what it had, or what it may."""


class Program(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process that may want the GPU."""

    pid: int
    started: float = 0.0
    """When, in seconds since 1970: tells a reused pid apart."""
    age_s: float = 0.0
    name: str
    """Of the executable, of a Windows game under Proton that of the game: eldenring.exe."""
    path: str = ""
    """Of the executable, with the system's own slashes; empty where the system keeps it back."""
    game: str = ""
    """The game's title, where it lies in a folder of a game library."""
    library: str = ""
    """Steam, Epic Games, …"""
    game_mode: bool = False
    """It has asked GameMode for the machine's full speed."""
    fullscreen: bool = False
    """Its window has the focus and covers its screen."""
    exclusive: bool = False
    """It draws to the screen by itself, as the system says: only games and the like do."""
    on_gpu: bool | None = None
    """Whether the driver lists it among the GPU's users; None where that means nothing."""
    vram_bytes: int | None = None
    """None where the system does not tell."""


class Missing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A probe that could not look, and why."""

    probe: str
    why: str


class Evidence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    at: float
    """Seconds of a clock that only goes forward."""
    gpu: Gpu | None = None
    """None while its figures cannot be had."""
    engine: Engine | None = None
    programs: tuple[Program, ...] = ()
    missing: tuple[Missing, ...] = ()
