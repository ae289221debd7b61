"""A step's sequences as attention reads them: ragged rows over pages, and tables for a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class PagedRows(Protocol):
    """Rows `start : start + length` of a batch, whose first is at position `context` of `pages`."""

    @property
    def start(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def context(self) -> int: ...
    @property
    def pages(self) -> Tensor: ...


class PagedSlots(Protocol):
    """Where each row of a batch keeps its key and value: int64 [N] page and offset within it."""

    @property
    def pages(self) -> Tensor: ...
    @property
    def offsets(self) -> Tensor: ...


@dataclass(frozen=True)
class AttentionTables:
    """A step's sequences as a GPU's kernels read them, single tokens first."""

    pages: Tensor
    """int32 [S, max_pages]: each sequence's pages, then zeros."""
    rows: Tensor | slice
    """Rows of the batch that are a sequence of one token: int64 [D], or where they begin and end if
    they follow one another."""
    lengths: Tensor
    """int32 [D]: positions of these sequences, the new one among them."""
    chunks: Tensor
    """int32 [S - D, 4]: first row, length, context, row of `pages`."""
    tiles: Tensor
    """int32 [T, 2]: chunk and first row within it."""
