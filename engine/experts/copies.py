"""Copies into slots beside what is computed: on a GPU a stream of their own, with events between.

In host memory copies are done when they are asked for, and nothing is waited for.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.experts.slots import SlotPool
from engine.memory.device import Device

Mark = torch.cuda.Event | None
"""A point in a stream's work; None where everything asked for is done."""

LEAST_MEASURED = 8 << 20
"""Bytes of a copy that tells the link's rate."""


class Copies:
    """`compute` below is the current stream of the device."""

    def __init__(self, device: Device) -> None:
        self._stream: torch.cuda.Stream | None = None
        if device.kind == "cuda":
            self._stream = torch.cuda.Stream(device.torch)  # type: ignore[no-untyped-call]
        self._measured: tuple[torch.Event, torch.Event, int] | None = None

    def follow(self) -> None:
        """Later copies wait for what compute has been asked for so far."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))

    def lead(self) -> None:
        """Compute waits from now on for the copies so far."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)

    def computed(self) -> Mark:
        """Compute as it is asked for so far."""
        if self._stream is None:
            return None
        mark: torch.cuda.Event = torch.cuda.current_stream(self._stream.device).record_event()
        return mark

    def reach(self, mark: Mark) -> None:
        """The host waits for this point."""
        if mark is not None:
            mark.synchronize()

    def copied(self) -> Mark:
        """The copies so far."""
        return None if self._stream is None else self._stream.record_event()

    def after(self, mark: Mark) -> None:
        """Later copies wait for this point of compute."""
        if self._stream is not None and mark is not None:
            self._stream.wait_event(mark)

    def expect(self, mark: Mark) -> None:
        """Compute waits from now on for this point of the copies."""
        if self._stream is not None and mark is not None:
            torch.cuda.current_stream(self._stream.device).wait_event(mark)

    def fill(self, pool: SlotPool, bank: Tensor, fills: list[tuple[int, int]]) -> None:
        """As SlotPool.fill, on the stream of copies."""
        if self._stream is None:
            pool.fill(bank, fills)
            return
        with torch.cuda.stream(self._stream):
            pool.fill(bank, fills)

    def measured(self, pool: SlotPool, bank: Tensor, fills: list[tuple[int, int]]) -> None:
        """As `fill`; nothing but the link delays these, so they tell its rate."""
        nbytes = len(fills) * pool.stride
        if self._stream is None or nbytes < LEAST_MEASURED:
            self.fill(pool, bank, fills)
            return
        begin, end = (torch.Event("cuda", enable_timing=True) for _ in range(2))
        begin.record(self._stream)
        self.fill(pool, bank, fills)
        end.record(self._stream)
        self._measured = begin, end, nbytes

    def rate(self) -> float | None:
        """Bytes a second of the last copies that were measured, if they are done."""
        if self._measured is None or not self._measured[1].query():
            return None
        begin, end, nbytes = self._measured
        return nbytes / (begin.elapsed_time(end) / 1e3)
