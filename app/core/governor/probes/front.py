"""The window in front: what every system's probe tells of it, and which probe is this system's."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Protocol

from app.core.governor.probes.probe import NotAvailable


@dataclass(frozen=True)
class Front:
    pid: int
    fullscreen: bool
    exclusive: bool = False
    """It draws to the screen by itself, as only Windows tells."""


class FrontProbe(Protocol):
    @property
    def name(self) -> str: ...

    def read(self) -> Front | None:
        """None where no window has the focus. Raises NotAvailable."""

    def rest(self) -> None: ...


class NoFrontProbe:
    name = "Window in front"

    def read(self) -> Front | None:
        raise NotAvailable(f"It is not looked for on this system ({sys.platform}).")

    def rest(self) -> None:
        pass
