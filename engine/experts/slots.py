"""The slot pool: room on the device for copies of blobs of one stride."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from engine.experts.residency import Move
from engine.memory.arena import Arena, HostArena, TorchArena
from engine.memory.device import Device
from engine.native.library import library


class SlotPool:
    """`bank` uint8 [slots, stride]; its address never changes, its length does at a resize.

    On `sim` the pool can grow to `most` slots and gives memory back when it shrinks. On cuda it
    takes its first size for good (see TorchArena): it can shrink and grow again, but not beyond.
    """

    def __init__(self, device: Device, stride: int, slots: int, most: int) -> None:
        self.stride = stride
        self._in_host_memory = device.in_host_memory
        self._arena: Arena
        if device.in_host_memory:
            self._arena = HostArena(most * stride)
        else:
            self._arena = TorchArena(slots * stride, device.torch)
        self._set(slots)

    @property
    def slots(self) -> int:
        return self.bank.shape[0]

    @property
    def nbytes(self) -> int:
        """Memory of the device that the pool holds."""
        return self._arena.backed

    def fill(self, slot: int, blob: Tensor) -> None:
        """Copy a blob, uint8 [stride] in host memory, into a slot."""
        self._settle()
        self.bank[slot].copy_(blob)

    def move(self, moves: Iterable[Move]) -> None:
        self._settle()
        for move in moves:
            self.bank[move.target].copy_(self.bank[move.source])

    def resize(self, slots: int) -> None:
        """Raises OutOfMemory beyond what the arena reserved. Old views of `bank` are dead."""
        if slots < 1:
            raise ValueError(f"a pool cannot have {slots} slots")
        self._set(slots)

    def _settle(self) -> None:
        """Wait for threads that may still read slots for a step that is over."""
        if self._in_host_memory and (native := library()) is not None:
            native.settle()

    def _set(self, slots: int) -> None:
        self._settle()
        self._arena.resize(slots * self.stride)
        self.bank = self._arena.view(0, (slots, self.stride), torch.uint8)
