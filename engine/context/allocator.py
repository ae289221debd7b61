"""Which KV pages are free. Exact: what is counted is what is held."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from engine.errors import OutOfMemory


class PageAllocator:
    """Hands out the pages `0 .. pages - 1`, lowest first, so that the end can be given back."""

    def __init__(self, pages: int) -> None:
        if pages < 0:
            raise ValueError(f"there cannot be {pages} pages")
        self.pages = pages
        self._free = list(range(pages))
        self._used: set[int] = set()

    @property
    def free_pages(self) -> int:
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """The `count` lowest free pages, or none at all: OutOfMemory names both numbers."""
        if count < 0:
            raise ValueError(f"cannot allocate {count} pages")
        if count > len(self._free):
            raise OutOfMemory(
                f"{count} pages of context are wanted, {len(self._free)} of {self.pages} are free."
            )
        taken = [heapq.heappop(self._free) for _ in range(count)]
        self._used.update(taken)
        return taken

    def free(self, pages: Iterable[int]) -> None:
        """Give pages back. If one is not held (or is named twice), none is freed: ValueError."""
        returned = list(pages)
        seen: set[int] = set()
        for page in returned:
            if page not in self._used or page in seen:
                raise ValueError(f"page {page} is not held, so it cannot be freed")
            seen.add(page)
        self._used -= seen
        for page in returned:
            heapq.heappush(self._free, page)

    def resize(self, pages: int) -> None:
        """More pages, or fewer: those that go must be free, else ValueError names the first."""
        if pages < 0:
            raise ValueError(f"there cannot be {pages} pages")
        held = [page for page in self._used if page >= pages]
        if held:
            raise ValueError(f"page {min(held)} is in use, so {pages} pages cannot be enough")
        self._free = [page for page in self._free if page < pages]
        self._free += range(self.pages, pages)
        heapq.heapify(self._free)
        self.pages = pages
