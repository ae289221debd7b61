"""The chunk table: where the gated delta rule's chunks begin and end in a prefill.

A chunk's result is a function of its rows, the state before it and nothing else, so a run that
continues from a snapshot equals one from the start, to the bit, if both cut at the same rows. Which
rows these are is for the caller to say; no launch or batch size moves them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

CHUNK = 64
"""Rows of a chunk at most."""
STATE, FIRST, LENGTH, START, KEPT = range(5)
"""Columns: row of the state pool, first row of the batch, rows, row where the sequence's part of
the batch begins, and row of the snapshot pool that gets a copy of the state after it, or -1."""
COLUMNS = 5


def even_lengths(rows: int) -> list[int]:
    """Full chunks, and one for the rest."""
    rest = rows % CHUNK
    return [CHUNK] * (rows // CHUNK) + ([rest] if rest else [])


@dataclass(frozen=True)
class ChunkRun:
    """One sequence's rows of the batch, which follow each other."""

    state: int
    """Row of the state pool, of no other run."""
    first: int
    lengths: Sequence[int]
    """Of its chunks, in order: each 1 to CHUNK."""
    kept: Mapping[int, int] = field(default_factory=dict)
    """Place in `lengths` of a chunk to row of the snapshot pool: its state is copied there."""


@dataclass(frozen=True)
class ChunkTable:
    sequences: tuple[ChunkRun, ...]
    """What the tensors are made of."""
    chunks: Tensor
    """int32 [T, COLUMNS], a sequence's chunks side by side and in order."""
    runs: Tensor
    """int32 [Q + 1]: a run's first chunk; the last entry is T."""
    keeps: bool
    """Whether any chunk has a snapshot."""

    @staticmethod
    def build(runs: Sequence[ChunkRun], device: torch.device | None = None) -> ChunkTable:
        """ValueError for a length that no chunk can have, or two runs of one state."""
        lines, begins = [], [0]
        for run in runs:
            row = run.first
            for place, length in enumerate(run.lengths):
                if not 1 <= length <= CHUNK:
                    raise ValueError(f"a chunk of {length} rows: 1 to {CHUNK} is allowed")
                lines.append([run.state, row, length, run.first, run.kept.get(place, -1)])
                row += length
            begins.append(len(lines))
        if len({run.state for run in runs}) < len(runs):
            raise ValueError("two runs of one table have the same state")
        chunks = torch.tensor(lines, dtype=torch.int32).reshape(-1, COLUMNS)
        return ChunkTable(
            tuple(runs),
            chunks.to(device),
            torch.tensor(begins, dtype=torch.int32).to(device),
            any(run.kept for run in runs),
        )
