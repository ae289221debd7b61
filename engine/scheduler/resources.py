"""What running sequences hold: KV pages, and one row each of the recurrent state pool."""

from __future__ import annotations

from dataclasses import dataclass

from engine.context.allocator import PageAllocator
from engine.scheduler.sequence import Sequence


@dataclass
class PageManager:
    """Gives sequences the pages that their tokens need, and takes them back."""

    allocator: PageAllocator
    page_tokens: int

    @property
    def total(self) -> int:
        return self.allocator.pages

    @property
    def available(self) -> int:
        return self.allocator.free_pages

    def count_for(self, tokens: int) -> int:
        return -(-tokens // self.page_tokens)

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        """Let the sequence hold `tokens` tokens. False, and no change, if pages are short."""
        missing = self.count_for(tokens) - len(sequence.pages)
        if missing > self.available:
            return False
        if missing > 0:
            sequence.pages.extend(self.allocator.allocate(missing))
        return True

    def trim(self, sequence: Sequence, tokens: int) -> None:
        """Give back the pages beyond those that `tokens` tokens need."""
        keep = self.count_for(tokens)
        surplus = sequence.pages[keep:]
        if surplus:
            self.allocator.free(surplus)
            del sequence.pages[keep:]


class RowManager:
    """Rows of the state pool: one for each running sequence."""

    def __init__(self, rows: int) -> None:
        self.total = rows
        self._free = list(range(rows - 1, -1, -1))

    @property
    def available(self) -> int:
        return len(self._free)

    def take(self, sequence: Sequence) -> None:
        sequence.row = self._free.pop()

    def give(self, sequence: Sequence) -> None:
        self._free.append(sequence.row)
        sequence.row = -1
