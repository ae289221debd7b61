"""How the store's layers are held in host memory: pinned for the GPU, locked, or as any memory is.

Layers are pinned when they are filled, by a thread of its own, while others are still read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from enum import StrEnum
from types import TracebackType

from torch import Tensor

from engine.errors import DriverError, OutOfMemory
from engine.memory.arena import HostArena
from engine.memory.pinned import Pinned

logger = logging.getLogger(__name__)

SPARE_BYTES = 1 << 30
"""Of what can be pinned this stays free where the system sets a limit: what is not pinned reaches
the GPU through buffers that are."""

Pin = Callable[[Tensor], Pinned]
"""Pins filled memory. Raises OutOfMemory or DriverError where the system has no more to pin."""


class Hold(StrEnum):
    PINNED = "pinned"
    """A GPU reads the layer by itself."""
    LOCKED = "locked"
    """It is never swapped out."""
    PAGEABLE = "pageable"


class Holding:
    """Takes layers as they are filled; `finish` settles how each of them is held."""

    def __init__(self, pin: Pin | None = None, *, lock: bool = False, spare: int = SPARE_BYTES):
        """Without `pin` nothing is pinned. `lock` locks what is not pinned, as far as permitted."""
        self._pin = pin
        self._lock = lock
        self._spare = spare
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pin")
        self._pending: list[Future[None]] = []
        self._arenas: dict[int, HostArena] = {}
        self._pinned: dict[int, Pinned] = {}
        self._locked: set[int] = set()
        self._refusal = ""

    def __enter__(self) -> Holding:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        """Ends the thread; after an error nothing stays pinned."""
        self._thread.shutdown(cancel_futures=True)
        if kind is not None:
            self.close()

    def add(self, layer: int, arena: HostArena, bank: Tensor) -> None:
        """This layer is filled; `bank` is its memory in the arena."""
        self._arenas[layer] = arena
        if self._pin is not None:
            self._pending.append(self._thread.submit(self._pin_layer, self._pin, layer, bank))

    def _pin_layer(self, pin: Pin, layer: int, bank: Tensor) -> None:
        if self._refusal:
            return
        try:
            self._pinned[layer] = pin(bank)
        except (OutOfMemory, DriverError) as error:
            self._refusal = error.message

    def finish(self) -> None:
        """Wait for the thread, and lock what is left if that is asked for.

        Raises DeviceFault if the GPU's context broke.
        """
        for pinning in self._pending:
            pinning.result()
        self._pending.clear()
        if self._refusal:
            self._leave_spare()
            logger.warning(
                "%.2f of the experts' %.2f GB are pinned, the GPU cannot read the rest by itself: "
                "%s",
                *(self.pinned_bytes / 1e9, self._total / 1e9, self._refusal),
            )
        elif self._pinned:
            logger.info("the experts' %.2f GB are pinned", self.pinned_bytes / 1e9)
        if self._lock:
            self._lock_rest()

    def _leave_spare(self) -> None:
        """The layers that were pinned last are pinned no more."""
        left = 0
        while self._pinned and left < self._spare:
            _, last = self._pinned.popitem()
            last.close()
            left += last.nbytes

    def _lock_rest(self) -> None:
        """Layer by layer until the system refuses, which is told once."""
        for layer, arena in self._arenas.items():
            if layer in self._pinned:
                continue
            if refusal := arena.lock():
                logger.warning(
                    "%.2f of the experts' %.2f GB are locked in memory, the rest may be swapped "
                    "out: %s",
                    *((self.pinned_bytes + self.locked_bytes) / 1e9, self._total / 1e9, refusal),
                )
                return
            self._locked.add(layer)

    def hold(self, layer: int) -> Hold:
        if layer in self._pinned:
            return Hold.PINNED
        return Hold.LOCKED if layer in self._locked else Hold.PAGEABLE

    def device_address(self, layer: int) -> int:
        """Where the GPU finds the layer's first byte; 0 for a layer that is not pinned."""
        return self._pinned[layer].device_address if layer in self._pinned else 0

    @property
    def pinned_bytes(self) -> int:
        return sum(pinned.nbytes for pinned in self._pinned.values())

    @property
    def locked_bytes(self) -> int:
        """Locked without being pinned."""
        return sum(self._arenas[layer].committed for layer in self._locked)

    @property
    def _total(self) -> int:
        return sum(arena.committed for arena in self._arenas.values())

    def close(self) -> None:
        """Unpin every layer, once the GPU has done what it was asked for."""
        while self._pinned:
            self._pinned.popitem()[1].close()
