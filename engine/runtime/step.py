"""A plan becomes tensors."""

from __future__ import annotations

import torch

from engine.context.batch import Batch, SequenceSlice
from engine.scheduler.sequence import Plan


def build_batch(plan: Plan, device: torch.device) -> Batch:
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
                pages=torch.tensor(sequence.pages, dtype=torch.int64, device=device),
                state=sequence.row,
            )
        )
        tokens += sequence.tokens[piece.start : end]
        positions += range(piece.start, end)
        if piece.samples:
            logit_rows.append(len(tokens) - 1)
    return Batch(
        tokens=torch.tensor(tokens, dtype=torch.int64, device=device),
        positions=torch.tensor(positions, dtype=torch.int64, device=device),
        sequences=tuple(slices),
        logit_rows=torch.tensor(logit_rows, dtype=torch.int64, device=device),
    )
