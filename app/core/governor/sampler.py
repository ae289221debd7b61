"""Makes one piece of evidence of what all probes see; what one cannot see, the others still do."""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from app.core.governor.evidence import Engine, Evidence, Missing, Program
from app.core.governor.games.here import game_folders
from app.core.governor.policy import Policy
from app.core.governor.probes import gpu_power
from app.core.governor.probes.front import Front, FrontProbe, NoFrontProbe
from app.core.governor.probes.game_mode import GameModeProbe
from app.core.governor.probes.nvml import GpuReading, NvmlProbe
from app.core.governor.probes.probe import NotAvailable
from app.core.governor.probes.processes import ProcessProbe
from app.core.governor.probes.windows_front import WindowsFrontProbe
from app.core.governor.probes.windows_vram import WindowsVramProbe
from app.core.governor.probes.x11_front import X11FrontProbe

log = logging.getLogger(__name__)

T = TypeVar("T")


def _front_probe() -> FrontProbe:
    probes: dict[str, type[FrontProbe]] = {"linux": X11FrontProbe, "win32": WindowsFrontProbe}
    return probes.get(sys.platform, NoFrontProbe)()


@dataclass
class Sampler:
    """All probes of this system, used by one thread at a time."""

    gpu: NvmlProbe = field(default_factory=lambda: NvmlProbe(gpu_power.all_asleep))
    processes: ProcessProbe = field(default_factory=lambda: ProcessProbe(game_folders))
    front: FrontProbe = field(default_factory=_front_probe)
    game_mode: GameModeProbe | None = field(
        default_factory=lambda: GameModeProbe() if sys.platform == "linux" else None
    )
    vram: WindowsVramProbe | None = field(
        default_factory=lambda: WindowsVramProbe() if sys.platform == "win32" else None
    )
    _shown: set[int] = field(default_factory=set)
    """Pids that had a fullscreen window; one that is behind another still plays."""

    def read(self, now: float, engine: Engine, policy: Policy) -> Evidence:
        """Look once. Takes as long as the slowest probe, which may be a driver in a reset."""
        missing: list[Missing] = []

        def attempt(name: str, look: Callable[[], T]) -> T | None:
            try:
                return look()
            except NotAvailable as why:
                missing.append(Missing(probe=name, why=str(why)))
                return None

        reading = attempt(self.gpu.name, lambda: self.gpu.read(engine))
        front = attempt(self.front.name, self.front.read)
        playing: frozenset[int] = frozenset()
        if self.game_mode is not None:
            playing = attempt(self.game_mode.name, self.game_mode.read) or playing
        held: dict[int, int] | None = None
        if (probe := self.vram) is not None:
            held = attempt(probe.name, lambda: probe.read(engine.pid))
        users = reading.users if reading is not None else None
        if front is not None and front.fullscreen:
            self._shown.add(front.pid)
        pids = {*playing, *self._shown, *(users or ()), *(held or ())}
        programs = [
            _known(program, front, playing, reading, held)
            for program in self.processes.read(pids - {os.getpid()}, policy.wants_room)
        ]
        self._shown &= {program.pid for program in programs}
        return Evidence(
            at=now,
            gpu=reading.gpu if reading is not None else None,
            engine=engine,
            programs=tuple(programs),
            missing=tuple(missing),
        )

    def rest(self) -> None:
        """Close what keeps a GPU awake, and connections; the next look opens them again."""
        self.gpu.rest()
        self.front.rest()
        for probe in (self.game_mode, self.vram):
            if probe is not None:
                probe.rest()


def _known(
    program: Program,
    front: Front | None,
    playing: frozenset[int],
    reading: GpuReading | None,
    held: dict[int, int] | None,
) -> Program:
    pid = program.pid
    in_front = front is not None and front.pid == pid
    users = reading.users if reading is not None else None
    vram = held.get(pid, 0) if held is not None else (users or {}).get(pid)
    return msgspec.structs.replace(
        program,
        game_mode=pid in playing,
        fullscreen=in_front and front is not None and front.fullscreen,
        exclusive=in_front and front is not None and front.exclusive,
        on_gpu=None if users is None else pid in users,
        vram_bytes=vram,
    )


class ThreadSource:
    """A sampler beside the app's thread: nobody waits for a driver, not even when the app ends."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._seen: queue.SimpleQueue[Evidence] = queue.SimpleQueue()
        self._turn = threading.Lock()
        self._opened = False

    def begin(self, now: float, engine: Engine, policy: Policy) -> None:
        self._opened = True

        def look() -> None:
            try:
                evidence = self._sampler.read(now, engine, policy)
            except Exception:
                log.exception("looking for other programs failed")
                failed = Missing(probe="All probes", why="They failed; the log has more.")
                evidence = Evidence(at=now, engine=engine, missing=(failed,))
            self._seen.put(evidence)

        self._run(look)

    def result(self) -> Evidence | None:
        """What was seen, once; None while the look goes on."""
        try:
            return self._seen.get_nowait()
        except queue.Empty:
            return None

    def rest(self) -> None:
        if self._opened:
            self._opened = False
            self._run(self._sampler.rest)

    def _run(self, work: Callable[[], None]) -> None:
        def in_turn() -> None:
            with self._turn:
                work()

        threading.Thread(target=in_turn, name="governor", daemon=True).start()
