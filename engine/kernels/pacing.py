"""A link that is played to be slower: what is copied takes as long as it would take there.

On a GPU its own clock is waited for, in the order of the stream; elsewhere the host waits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from engine.kernels.registry import operation


@operation("mark_clock", "engine.kernels.gpu.pacing")
def mark_clock(began: Tensor) -> None:
    """Write the time in nanoseconds to `began`, int64 [1]."""
    began.fill_(time.perf_counter_ns())


@operation("wait_clock", "engine.kernels.gpu.pacing")
def wait_clock(began: Tensor, pace: Tensor, nbytes: int) -> None:
    """Wait until `nbytes` may have been copied since `began`, at `pace` (float32 [1]) nanoseconds a
    byte."""
    until = int(began) + int(nbytes * float(pace))
    while (left := until - time.perf_counter_ns()) > 0:
        time.sleep(left / 1e9)


class LinkPace:
    """No more than so many bytes a second."""

    def __init__(self, bytes_per_s: float, device: torch.device) -> None:
        self._device = device
        self.nanoseconds = torch.tensor([1e9 / bytes_per_s], dtype=torch.float32, device=device)
        """Of a byte, at least: float32 [1]."""

    @contextmanager
    def copying(self, nbytes: int) -> Iterator[None]:
        """Around copies of so many bytes, which are asked for on the current stream: what follows
        there comes after the time that they take."""
        began = torch.empty(1, dtype=torch.int64, device=self._device)
        mark_clock(began)
        yield
        wait_clock(began, self.nanoseconds, nbytes)
