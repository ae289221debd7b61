"""The slot pool: room on the device for copies of blobs of one stride."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from engine.experts.residency import Move
from engine.kernels.pacing import LinkPace
from engine.memory.arena import Arena
from engine.memory.device import Device, driver_of
from engine.native.library import library

LARGEST_COPY = 8 << 20
"""Bytes: enough for the link's rate, and little enough to wait for where another stream's small
copy comes in between."""


def runs(fills: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """(first expert, first slot, how many) of fills (expert, slot) that follow one another in both:
    each is one copy, and large ones are nearer to what the link can do."""
    start: tuple[int, int] | None = None
    count = 0
    for expert, slot in fills:
        if start is not None and (expert, slot) == (start[0] + count, start[1] + count):
            count += 1
            continue
        if start is not None:
            yield *start, count
        start, count = (expert, slot), 1
    if start is not None:
        yield *start, count


class SlotPool:
    """`bank` uint8 [slots, stride]; its address never changes, its length does at a resize.

    The pool can grow to `most` slots and gives memory back when it shrinks. (On a GPU whose driver
    has no virtual memory it keeps what its first size takes: see TorchArena.)
    """

    def __init__(
        self, device: Device, stride: int, slots: int, most: int, pace: LinkPace | None = None
    ) -> None:
        """Fills take as long as `pace` says, if they would take less."""
        self.stride = stride
        self._pace = pace
        self.filled_ns = self.filled_bytes = 0
        """What fills took of the host's time in host memory, where they are done at once."""
        self._in_host_memory = device.in_host_memory
        self._arena = Arena.reserve(most * stride, device.torch, first=slots * stride)
        self._set(slots)

    @property
    def slots(self) -> int:
        return self.bank.shape[0]

    @property
    def nbytes(self) -> int:
        """Memory of the device that the pool holds."""
        return self._arena.backed

    def fill(self, bank: Tensor, fills: Sequence[tuple[int, int]]) -> None:
        """Copy experts of a layer, uint8 [experts, stride] in host memory, each into its slot.

        In the order of the current stream. From pinned memory the copy engine copies, and this
        returns before it has.
        """
        if not fills:
            return
        self._settle()
        begin, nbytes = time.perf_counter_ns(), len(fills) * self.stride
        with self._pace.copying(nbytes) if self._pace is not None else nullcontext():
            if self._in_host_memory:
                for expert, slot, count in runs(fills):
                    self.bank[slot : slot + count].copy_(bank[expert : expert + count])
            else:
                # One call each: a streamed prompt makes thousands of copies.
                self._copy_in(bank, fills)
        if self._in_host_memory:
            self.filled_ns += time.perf_counter_ns() - begin
            self.filled_bytes += nbytes

    def _copy_in(self, bank: Tensor, fills: Sequence[tuple[int, int]]) -> None:
        source, target, stride = bank.data_ptr(), self.bank.data_ptr(), self.stride
        most = max(1, LARGEST_COPY // stride)
        copies = (
            (target + (slot + n) * stride, source + (expert + n) * stride, many * stride)
            for expert, slot, count in runs(fills)
            for n in range(0, count, most)
            for many in (min(most, count - n),)
        )
        device = self.bank.device
        driver_of(device).copy_in(copies, torch.cuda.current_stream(device).cuda_stream)

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
