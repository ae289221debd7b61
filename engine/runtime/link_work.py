"""What `headrace bench link` has the link do: copies, and blobs on their way into slots."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from engine.experts.slots import SlotPool
from engine.kernels.gather import Banks, gather_blobs
from engine.memory.arena import HostArena
from engine.memory.device import Device
from engine.memory.pinned import Pinned

CALLS = 16
"""Of each graph, all at other places in host memory."""
MOST_BLOBS = 16
PAGE = 4096


@dataclass
class Work:
    """`nbytes` cross the link in each of a captured graph's calls."""

    name: str
    nbytes: int
    graph: torch.cuda.CUDAGraph
    seconds: list[float] = field(default_factory=list)
    """Of one call, by replay."""

    def replay(self) -> None:
        begin, end = (torch.Event("cuda", enable_timing=True) for _ in range(2))
        begin.record()
        self.graph.replay()
        end.record()
        end.synchronize()
        self.seconds.append(begin.elapsed_time(end) / 1e3 / CALLS)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def rate(self) -> float:
        """10^9 bytes a second."""
        return self.nbytes / self.median / 1e9


class Link:
    """Host memory held as the expert store's is, and slots as the engine's on a GPU."""

    def __init__(self, device: Device, stride: int, host_bytes: int, copy_bytes: int) -> None:
        """Room for copies of up to `copy_bytes`. Raises OutOfMemory or DriverError."""
        experts = host_bytes // stride
        self._arena = HostArena(experts * stride, large=True)
        self._arena.commit(experts * stride)
        self._bank = self._arena.view(0, (experts, stride), torch.uint8).fill_(1)
        self._pinned = Pinned(self._bank, device.torch)
        slots = max(MOST_BLOBS, -(-copy_bytes // stride))
        self._pool = SlotPool(device, stride, slots, slots)
        self._device = device.torch
        self._chance = random.Random(1)
        self._kept: list[torch.Tensor] = []
        """What the graphs read."""

    def close(self) -> None:
        self._pinned.close()

    def copy(self, nbytes: int) -> Work:
        """One copy by the copy engine."""
        source, target = self._bank.view(-1), self._pool.bank.view(-1)[:nbytes]
        places = (source.numel() - nbytes) // PAGE
        starts = [self._chance.randint(0, places) * PAGE for _ in range(CALLS)]
        calls = [
            partial(target.copy_, source[start : start + nbytes], non_blocking=True)
            for start in starts
        ]
        return self._captured(f"copy {nbytes >> 10} KiB", nbytes, calls)

    def copies(self, blobs: int) -> Work:
        """So many blobs by the copy engine, a copy each."""
        fills = [
            list(zip(self._experts(blobs), range(blobs - 1, -1, -1), strict=True))
            for _ in range(CALLS)
        ]
        calls = [partial(self._pool.fill, self._bank, rows) for rows in fills]
        return self._captured(f"copies {blobs}", blobs * self._pool.stride, calls)

    def gather(self, blobs: int) -> Work:
        """So many blobs by the kernel that reads host memory."""
        address = torch.tensor([self._pinned.device_address], device=self._device)
        banks = Banks((self._bank,), address)
        count = torch.tensor([blobs], dtype=torch.int32, device=self._device)
        tables = [
            torch.tensor(
                [(0, expert, slot) for slot, expert in enumerate(self._experts(MOST_BLOBS))],
                dtype=torch.int32,
                device=self._device,
            )
            for _ in range(CALLS)
        ]
        self._kept += [address, count, *tables]
        calls = [partial(gather_blobs, self._pool.bank, banks, table, count) for table in tables]
        return self._captured(f"gather {blobs}", blobs * self._pool.stride, calls)

    def _experts(self, count: int) -> list[int]:
        return self._chance.sample(range(self._bank.shape[0]), count)

    def _captured(self, name: str, nbytes: int, calls: Sequence[Callable[[], object]]) -> Work:
        calls[0]()  # a kernel's first call compiles it
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        graph.replay()
        torch.cuda.synchronize(self._device)
        return Work(name, nbytes, graph)
