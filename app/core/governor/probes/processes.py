"""Which programs run: games among them, and what is known of those that others point at."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

import psutil

from app.core.governor import ordinary
from app.core.governor.evidence import Program
from app.core.governor.games.folders import Game, GameFolder, GameIndex

REFRESH_S = 60.0
"""Libraries are read again, and every process is looked at again, this often."""
YOUNG_S = 10.0
"""A process so young may still become another program: what starts it runs first."""
_STEAM_WRAPPER = "SteamLaunch"
"""Steam on Linux runs every game below a process with this argument, from before its shaders are
compiled until it has ended; the game's path is among the arguments."""


@dataclass(frozen=True)
class _Seen:
    started: float
    name: str
    path: str
    game: Game | None


class ProcessProbe:
    name = "Running programs"

    def __init__(
        self,
        folders: Callable[[], list[GameFolder]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock`: seconds since 1970."""
        self._folders = folders
        self._clock = clock
        self._index = GameIndex(())
        self._seen: dict[int, _Seen] = {}
        self._refreshed = -REFRESH_S

    def read(self, pointed_at: Collection[int], listed: Callable[[Program], bool]) -> list[Program]:
        """Games that run, programs that are `listed`, and those `pointed_at` by their pids."""
        now = self._clock()
        if not 0 <= now - self._refreshed < REFRESH_S:
            self._refreshed = now
            self._index = GameIndex(self._folders())
            self._seen.clear()
        pids = set(psutil.pids())
        self._seen = {pid: seen for pid, seen in self._seen.items() if pid in pids}
        found = []
        for pid in sorted(pids):
            seen = self._seen.get(pid)
            if seen is None or now - seen.started < YOUNG_S or self._matters(pid, seen, pointed_at):
                seen = self._look(pid)
            if seen is None:
                continue
            self._seen[pid] = seen
            program = _program(pid, seen, now)
            if seen.game is not None or pid in pointed_at or listed(program):
                found.append(program)
        return found

    def _matters(self, pid: int, seen: _Seen, pointed_at: Collection[int]) -> bool:
        """Whether it must not be mistaken: its pid may be another process's since."""
        if seen.game is None and pid not in pointed_at:
            return False
        try:
            return bool(psutil.Process(pid).create_time() != seen.started)
        except psutil.Error:
            return True

    def _look(self, pid: int) -> _Seen | None:
        try:
            process = psutil.Process(pid)
            started = process.create_time()
            known = self._seen.get(pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            name, path = process.name(), _path(process)
            # On Windows that would read another process's memory, which guards of games mind.
            arguments = process.cmdline() if sys.platform == "linux" else []
        except psutil.Error:
            self._seen.pop(pid, None)
            return None
        if known is not None and (known.started, known.path) == (started, path):
            return known
        game, shown = self._game(path, arguments)
        return _Seen(started, shown or name, path, game)

    def _game(self, path: str, arguments: list[str]) -> tuple[Game | None, str]:
        """The game that runs here, and under Proton the name of its own program."""
        game = self._index.game_of(path)
        if game is not None and not ordinary.is_tool(game.title):
            return game, ""
        wrapper = _STEAM_WRAPPER in arguments
        for argument in reversed(arguments) if wrapper else arguments[:1]:
            within = self._index.game_of(argument)
            if within is not None and not ordinary.is_tool(within.title):
                return within, "" if wrapper else argument.replace("\\", "/").rpartition("/")[2]
        return None, ""


def _path(process: psutil.Process) -> str:
    try:
        return process.exe()
    except psutil.AccessDenied:
        return ""  # another user's, or one that is guarded


def _program(pid: int, seen: _Seen, now: float) -> Program:
    return Program(
        pid=pid,
        started=seen.started,
        age_s=max(0.0, now - seen.started),
        name=seen.name,
        path=seen.path,
        game=seen.game.title if seen.game else "",
        library=seen.game.library if seen.game else "",
    )
