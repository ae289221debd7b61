"""Arenas: one address range each, of which a growing and shrinking first part is in use.

An owner reserves the most it may ever want, commits bytes at the end of what it has, and releases
bytes from that end. Addresses do not move while the arena lives: what is not released stays valid.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.errors import OutOfMemory
from engine.memory.host_pages import PAGE_BYTES, HostPages
from engine.memory.locking import lock_memory


class Arena(ABC):
    """Bytes `[0, committed)` are the owner's; `backed` is that rounded up to whole granules.

    Memory is zero when it is first committed; after a release and a new commit its content is
    undefined. Views of released memory must not be touched again.
    """

    def __init__(self, reserved: int, granule: int) -> None:
        if reserved < 0:
            raise ValueError(f"an arena cannot reserve {reserved} bytes")
        self.reserved = reserved
        self.granule = granule
        self._committed = 0

    @staticmethod
    def reserve(
        nbytes: int, device: torch.device | None = None, *, first: int | None = None
    ) -> Arena:
        """An arena of at most `nbytes`, in host memory unless `device` is another one.

        `first` (by default `nbytes`) is what the owner begins with: more than that is not to be had
        of a GPU whose driver has no virtual memory.
        """
        if device is None or device.type == "cpu":
            return HostArena(nbytes)
        first = nbytes if first is None else first
        if device.type != "cuda":
            return TorchArena(first, device)
        # Not at the top: it builds on this module.
        from engine.memory.cuda_arena import cuda_arena

        return cuda_arena(nbytes, device, first)

    @property
    def committed(self) -> int:
        return self._committed

    @property
    def backed(self) -> int:
        """Bytes of memory this arena may hold now."""
        return self._rounded(self._committed)

    def commit(self, nbytes: int) -> None:
        """`nbytes` more at the end. Raises OutOfMemory if the reservation is too small."""
        if nbytes < 0:
            raise ValueError(f"cannot commit {nbytes} bytes")
        wanted = self._committed + nbytes
        if wanted > self.reserved:
            raise OutOfMemory(
                f"{wanted / 1e9:.3f} GB are wanted of an arena of {self.reserved / 1e9:.3f} GB."
            )
        start, stop = self.backed, self._rounded(wanted)
        if stop > start:
            self._back(start, stop)
        self._committed = wanted

    def release(self, nbytes: int) -> None:
        """`nbytes` fewer: the last ones. Whole granules above the new end return to the system."""
        if not 0 <= nbytes <= self._committed:
            raise ValueError(f"cannot release {nbytes} of {self._committed} committed bytes")
        stop = self.backed
        self._committed -= nbytes
        start = self.backed
        if stop > start:
            self._give_back(start, stop)

    def resize(self, nbytes: int) -> None:
        """Commit or release so that exactly `nbytes` are committed."""
        if nbytes >= self._committed:
            self.commit(nbytes - self._committed)
        else:
            self.release(self._committed - nbytes)

    def view(self, offset: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A contiguous tensor at `offset` bytes, which must be a multiple of the element size.

        Raises ValueError if it does not lie wholly in what is committed.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        if offset < 0 or any(size < 0 for size in shape) or offset + nbytes > self._committed:
            raise ValueError(
                f"a view of {nbytes} bytes at {offset} is outside the {self._committed} committed"
            )
        if offset % dtype.itemsize:
            raise ValueError(f"offset {offset} is no multiple of the {dtype.itemsize} of {dtype}")
        return self._storage()[offset : offset + nbytes].view(dtype).view(tuple(shape))

    def _rounded(self, nbytes: int) -> int:
        return -(-nbytes // self.granule) * self.granule

    @abstractmethod
    def _storage(self) -> Tensor:
        """uint8, at least `committed` long, at an address that never changes."""

    @abstractmethod
    def _back(self, start: int, stop: int) -> None:
        """Make the granules `[start, stop)` usable."""

    @abstractmethod
    def _give_back(self, start: int, stop: int) -> None:
        """Return the granules `[start, stop)` to the system."""


class HostArena(Arena):
    """Host memory. Pages appear when they are touched and are really gone once released."""

    def __init__(self, nbytes: int, granule: int = PAGE_BYTES, *, large: bool = False) -> None:
        """`large` asks for large pages, for what fills its memory and then reads all over it."""
        if granule <= 0 or granule % PAGE_BYTES:
            raise ValueError(f"a granule of {granule} is no multiple of a page of {PAGE_BYTES}")
        super().__init__(nbytes, granule)
        self._pages = HostPages(max(self._rounded(nbytes), granule), large=large)

    def lock(self) -> str:
        """Keep what is committed from being swapped out. Returns why that is not permitted; ""
        once it is done. It takes memory for every page at once."""
        return lock_memory(self._pages.tensor.data_ptr(), self.committed)

    def _storage(self) -> Tensor:
        return self._pages.tensor

    def _back(self, start: int, stop: int) -> None:
        self._pages.commit(start, stop)

    def _give_back(self, start: int, stop: int) -> None:
        self._pages.give_back(start, stop)


class TorchArena(Arena):
    """Memory of any torch device, all of it allocated at the first commit and held until the end.

    This is what an arena can honestly be on a GPU whose driver has no virtual memory: accounting
    and addresses behave as everywhere, but `release` returns nothing to other programs, so an owner
    should reserve what it will use and not what the card could hold. `backed` says so.
    """

    ALIGNMENT = 512
    """torch's CUDA allocator aligns to this."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        super().__init__(nbytes, self.ALIGNMENT)
        self.device = device
        self._bytes: Tensor | None = None

    @property
    def backed(self) -> int:
        return self._bytes.nbytes if self._bytes is not None else 0

    def _storage(self) -> Tensor:
        if self._bytes is None:
            return torch.empty(0, dtype=torch.uint8, device=self.device)
        return self._bytes

    def _back(self, start: int, stop: int) -> None:  # noqa: ARG002
        # Reached once: from then on `backed` is the whole reservation.
        try:
            self._bytes = torch.zeros(
                self._rounded(self.reserved), dtype=torch.uint8, device=self.device
            )
        except torch.OutOfMemoryError as error:
            raise OutOfMemory(
                f"{self.reserved / 1e9:.2f} GB are wanted on {self.device}, which has "
                f"{_free_bytes(self.device) / 1e9:.2f} GB free.",
                hint="Lower --moe-cache-rate or --context, or close what else uses the GPU.",
            ) from error

    def _give_back(self, start: int, stop: int) -> None:
        """Never reached, since `backed` does not shrink."""


def _free_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
