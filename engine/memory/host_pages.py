"""Anonymous host memory whose pages come when they are touched and go when they are given back.

Linux and macOS map the whole range readable and writable at once; untouched pages cost nothing.
Windows charges memory when it is committed, so there the range is only reserved and `commit` makes
parts of it usable; touching a part that was given back is then an access violation, where POSIX
reads zeros. Callers must treat both alike: a view of memory that was given back is dead.

`large` asks for large pages, which spare a processor that reads all over gigabytes most of its
misses in the table of pages: on Linux those set aside for that (vm.nr_hugepages), if they suffice,
else the ones that the kernel makes of small pages as it can. Elsewhere it is only a wish.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import mmap
import sys
import weakref
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import OutOfMemory

PAGE_BYTES = mmap.PAGESIZE

logger = logging.getLogger(__name__)

if sys.platform == "win32":
    _MEM_COMMIT, _MEM_RESERVE, _MEM_DECOMMIT, _MEM_RELEASE = 0x1000, 0x2000, 0x4000, 0x8000
    _PAGE_NOACCESS, _PAGE_READWRITE = 0x01, 0x04
    _kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
    _kernel32.VirtualAlloc.restype = ctypes.c_void_p
    _kernel32.VirtualAlloc.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_uint32,
        ctypes.c_uint32,
    ]
    _kernel32.VirtualFree.restype = ctypes.c_int
    _kernel32.VirtualFree.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32]

    class HostPages:
        """A reserved range of `nbytes`; `tensor` is all of it as uint8 [nbytes]."""

        def __init__(self, nbytes: int, *, large: bool = False) -> None:  # noqa: ARG002
            # Large pages exist, but cannot be committed little by little, which everything else
            # here relies on.
            address = _kernel32.VirtualAlloc(None, nbytes, _MEM_RESERVE, _PAGE_NOACCESS)
            if not address:
                raise _refused("reserve", nbytes, ctypes.WinError(ctypes.get_last_error()))
            self._address = int(address)
            buffer = (ctypes.c_ubyte * nbytes).from_address(self._address)
            # The tensor keeps the buffer, and the buffer's end is the mapping's end.
            weakref.finalize(buffer, _kernel32.VirtualFree, address, 0, _MEM_RELEASE)
            self.tensor: Tensor = torch.frombuffer(buffer, dtype=torch.uint8)

        def commit(self, start: int, stop: int) -> None:
            address = self._address + start
            if not _kernel32.VirtualAlloc(address, stop - start, _MEM_COMMIT, _PAGE_READWRITE):
                raise _refused("commit", stop - start, ctypes.WinError(ctypes.get_last_error()))

        def give_back(self, start: int, stop: int) -> None:
            if not _kernel32.VirtualFree(self._address + start, stop - start, _MEM_DECOMMIT):
                raise _refused("decommit", stop - start, ctypes.WinError(ctypes.get_last_error()))

else:
    # Not in the mmap module before Python 3.13. Without it Linux may refuse to map a range that
    # exceeds free memory, although most of it will never be touched.
    _LINUX_NORESERVE = 0x4000
    _LINUX_HUGETLB = 0x40000
    # MADV_DONTNEED drops private anonymous pages at once on Linux; on macOS it is only a hint, and
    # MADV_FREE_REUSABLE takes pages off the process's footprint (and FREE_REUSE puts them back).
    _REUSE: int | None
    if sys.platform == "darwin":
        _FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANON
        _GIVE_BACK, _REUSE = 7, 8
    else:
        _FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _LINUX_NORESERVE
        _GIVE_BACK, _REUSE = mmap.MADV_DONTNEED, None

    def _set_aside(nbytes: int, size: int, free: int) -> mmap.mmap | None:
        """A mapping of huge pages of `size` bytes, if as many as it takes have been set aside."""
        if sys.platform != "linux" or size * free < nbytes:
            return None
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _LINUX_HUGETLB
        try:
            return mmap.mmap(-1, -(-nbytes // size) * size, flags=flags)
        except OSError as error:
            logger.info("Huge pages are set aside and were refused: %s", error)
            return None

    def huge_pages(facts: Path = Path("/proc/meminfo")) -> tuple[int, int]:
        """(bytes of a huge page, how many of them are free); zeros where there is no such thing."""
        if not facts.exists():
            return 0, 0
        lines = (line.split() for line in facts.read_text().splitlines())
        values = {words[0].rstrip(":"): int(words[1]) for words in lines if len(words) > 1}
        free = values.get("HugePages_Free", 0) - values.get("HugePages_Rsvd", 0)
        return values.get("Hugepagesize", 0) << 10, free

    class HostPages:
        """A mapped range of `nbytes`; `tensor` is all of it as uint8 [nbytes]."""

        def __init__(self, nbytes: int, *, large: bool = False) -> None:
            self._page = PAGE_BYTES
            try:
                huge, free = huge_pages() if large else (0, 0)
                mapped = _set_aside(nbytes, huge, free)
                if mapped is not None:
                    self._page = huge
                self._map = mapped or mmap.mmap(-1, nbytes, flags=_FLAGS)
            except (OSError, ValueError, OverflowError) as error:
                raise _refused("map", nbytes, error) from error
            if large and sys.platform == "linux":
                # A kernel without them says so; the ones set aside are large already.
                with contextlib.suppress(OSError):
                    self._map.madvise(mmap.MADV_HUGEPAGE)
            self._reusable_from = nbytes
            # The tensor exports the mapping's buffer, so the mapping lives as long as any view.
            self.tensor: Tensor = torch.frombuffer(self._map, dtype=torch.uint8)[:nbytes]

        def commit(self, start: int, stop: int) -> None:
            if _REUSE is not None and stop > self._reusable_from:
                begin = max(start, self._reusable_from)
                self._map.madvise(_REUSE, begin, stop - begin)
                self._reusable_from = stop

        def give_back(self, start: int, stop: int) -> None:
            # Of a huge page that was set aside no part can go.
            begin, end = -(-start // self._page) * self._page, stop // self._page * self._page
            if end > begin:
                self._map.madvise(_GIVE_BACK, begin, end - begin)
            self._reusable_from = min(self._reusable_from, start)


def _refused(verb: str, nbytes: int, reason: object) -> OutOfMemory:
    return OutOfMemory(
        f"The operating system refused to {verb} {nbytes / 1e9:.2f} GB of memory: {reason}.",
        hint="Close other programs, or choose a smaller model or context.",
    )
