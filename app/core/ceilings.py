"""The highest rates that an engine was measured at: what its rates of now are held against."""

from __future__ import annotations

from engine.messages import Stats


class Ceilings:
    """Bytes a second over the link and from host memory, 0 until any were measured."""

    def __init__(self) -> None:
        self.link = self.host = 0.0
        self._engine: tuple[str, int, int] = ("", 0, 0)

    def take(self, stats: Stats) -> None:
        """Another model or runtime is measured anew."""
        engine = (stats.model, stats.runtime_pid, stats.runtime_restarts)
        if engine != self._engine:
            self._engine = engine
            self.link = self.host = 0.0
        # While experts are fetched the link does nothing else: that is its rate at full load.
        self.link = max(self.link, stats.gather_bytes_per_s, stats.link_bytes_per_s)
        self.host = max(self.host, stats.host_bytes_per_s)
