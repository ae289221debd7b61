"""The three matrices of one routed expert, read only when asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.formats.weight import StoredWeight


@dataclass(frozen=True)
class ExpertTensors:
    """An expert's gate and up [intermediate, hidden] and down [hidden, intermediate].

    Each property reads from the files anew (views of mapped files, so a read costs nothing until
    its bytes are touched); nothing is kept.
    """

    read_gate: Callable[[], StoredWeight]
    read_up: Callable[[], StoredWeight]
    read_down: Callable[[], StoredWeight]

    @property
    def gate(self) -> StoredWeight:
        return self.read_gate()

    @property
    def up(self) -> StoredWeight:
        return self.read_up()

    @property
    def down(self) -> StoredWeight:
        return self.read_down()
