"""A plan becomes tensors."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch

from engine.context.batch import Batch, SequenceSlice
from engine.scheduler.sequence import Plan, Sequence


class BatchBuilder:
    """Makes batches, and keeps each sequence's page table on the device between steps.

    A context of 100,000 tokens has 6,250 pages: too long a list to make a tensor of for every
    token, and it changes once a page.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._tables: WeakKeyDictionary[Sequence, tuple[tuple[int, int], torch.Tensor]] = (
            WeakKeyDictionary()
        )

    def build(self, plan: Plan) -> Batch:
        """The plan's pieces end to end, and a row of logits for each one that samples, in order."""
        tokens: list[int] = []
        positions: list[int] = []
        logit_rows: list[int] = []
        slices = []
        for piece in plan.pieces:
            sequence, end = piece.sequence, piece.start + piece.length
            slices.append(
                SequenceSlice(
                    start=len(tokens),
                    length=piece.length,
                    context=piece.start,
                    pages=self._table(sequence),
                    state=sequence.row,
                )
            )
            tokens += sequence.tokens[piece.start : end]
            positions += range(piece.start, end)
            if piece.samples:
                logit_rows.append(len(tokens) - 1)
        return Batch(
            tokens=self._tensor(tokens),
            positions=self._tensor(positions),
            sequences=tuple(slices),
            logit_rows=self._tensor(logit_rows),
        )

    def _table(self, sequence: Sequence) -> torch.Tensor:
        # Pages are only ever appended, except by a preemption, which starts over.
        version = (sequence.preemptions, len(sequence.pages))
        known = self._tables.get(sequence)
        if known is not None and known[0] == version:
            return known[1]
        table = self._tensor(sequence.pages)
        self._tables[sequence] = (version, table)
        return table

    def _tensor(self, numbers: list[int]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._device)
