"""Arenas on a GPU: one address range each, and physical memory that comes and goes under it.

Addresses stay, so what was captured in a graph stays right while memory behind it is given back and
taken again.
"""

from __future__ import annotations

import logging
import weakref
from functools import cache

import torch
from torch import Tensor

from engine.errors import OutOfMemory
from engine.memory.arena import Arena, TorchArena
from engine.memory.cuda_driver import Driver
from engine.memory.device import driver_of

HANDLE_BYTES = 32 << 20
"""Memory comes in pieces of this size. Each costs calls of the driver, so that gigabytes in pieces
of its own granularity would come and go slowly; larger ones round up by more."""
SMALLEST_SHARE = 64
"""A small arena's pieces are this share of it, so that rounding up to whole ones takes little."""

logger = logging.getLogger(__name__)


def handle_bytes(reserved: int, granularity: int) -> int:
    """The piece in which an arena of at most `reserved` bytes grows: a multiple of `granularity`,
    which is the driver's."""
    wanted = min(HANDLE_BYTES, reserved // SMALLEST_SHARE)
    return max(1, -(-wanted // granularity)) * granularity


def cuda_arena(nbytes: int, device: torch.device, first: int) -> Arena:
    """An arena of at most `nbytes`; of `first`, which cannot shrink or grow, and the log says so,
    where the driver has no virtual memory."""
    if has_virtual_memory(device):
        return CudaArena(nbytes, device)
    return TorchArena(first, device)


@cache
def has_virtual_memory(device: torch.device) -> bool:
    """Whether arenas on it can grow and shrink; the log says so once where they cannot."""
    found = driver_of(device).has_virtual_memory
    if not found:
        logger.warning(
            "The driver of %s has no virtual memory: what experts and context take of the GPU's "
            "memory at the start they keep.",
            device,
        )
    return found


class CudaArena(Arena):
    """Memory of a GPU, in whole handles; released ones are free to every program at once.

    Whoever shrinks or ends an arena waits for everything that runs on the GPU.
    """

    def __init__(self, nbytes: int, device: torch.device) -> None:
        """Raises OutOfMemory if there is no such range of addresses."""
        self.device = device
        self._driver = driver_of(device)
        super().__init__(nbytes, handle_bytes(nbytes, self._driver.granularity()))
        whole = max(self._rounded(nbytes), self.granule)
        self._range = _Range(self._driver, whole, self.granule)

    def _storage(self) -> Tensor:
        if not self._range.handles:
            return torch.empty(0, dtype=torch.uint8, device=self.device)
        # The tensor keeps the range, and the range's end gives everything back.
        return torch.as_tensor(self._range, device=self.device)

    def _back(self, start: int, stop: int) -> None:
        count = (stop - start) // self.granule
        try:
            self._range.grow(count)
        except OutOfMemory:
            # torch holds freed memory for its own later use.
            torch.cuda.empty_cache()
            self._grow_or_tell(count)
        self._storage()[start:stop].zero_()
        # Zeros must be there before any stream's kernel is.
        torch.cuda.current_stream(self.device).synchronize()

    def _grow_or_tell(self, count: int) -> None:
        try:
            self._range.grow(count)
        except OutOfMemory as error:
            raise OutOfMemory(
                f"{count * self.granule / 1e9:.2f} GB more are wanted on {self.device}, which has "
                f"{self._driver.free_bytes() / 1e9:.2f} GB free ({error.message}).",
                hint="Lower --moe-cache-rate or --context, or close what else uses the GPU.",
            ) from error

    def _give_back(self, start: int, stop: int) -> None:
        self._range.shrink((stop - start) // self.granule)


class _Range:
    """Reserved addresses whose first `handles` are backed; torch reads it as a uint8 array."""

    def __init__(self, driver: Driver, nbytes: int, handle_bytes: int) -> None:
        self._driver = driver
        self._handle_bytes = handle_bytes
        self.address = driver.reserve(nbytes)
        self.handles: list[int] = []
        end = weakref.finalize(
            self, _give_up, driver, self.address, nbytes, handle_bytes, self.handles
        )
        # The process's end gives everything back by itself.
        end.atexit = False

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        nbytes = len(self.handles) * self._handle_bytes
        return {"shape": (nbytes,), "typestr": "|u1", "data": (self.address, False), "version": 3}

    def grow(self, count: int) -> None:
        """So many more handles, or none."""
        before = len(self.handles)
        size = self._handle_bytes
        try:
            for place in range(before, before + count):
                handle = self._driver.create(size)
                try:
                    self._driver.map(self.address + place * size, size, handle)
                except BaseException:
                    self._driver.release(handle)
                    raise
                self.handles.append(handle)
            self._driver.allow(self.address + before * size, count * size)
        except BaseException:
            _unmap(self._driver, self.address, size, self.handles, len(self.handles) - before)
            raise

    def shrink(self, count: int) -> None:
        self._driver.synchronise()
        _unmap(self._driver, self.address, self._handle_bytes, self.handles, count)


def _unmap(driver: Driver, address: int, size: int, handles: list[int], count: int) -> None:
    """The last `count` handles."""
    for _ in range(count):
        driver.unmap(address + (len(handles) - 1) * size, size)
        driver.release(handles.pop())


def _give_up(driver: Driver, address: int, nbytes: int, size: int, handles: list[int]) -> None:
    driver.synchronise()
    _unmap(driver, address, size, handles, len(handles))
    driver.free_range(address, nbytes)
