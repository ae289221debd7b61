"""One step's work as the layers see it: ragged sequences laid end to end."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True)
class SequenceSlice:
    """The part of a batch that belongs to one sequence.

    Rows `start : start + length` of the batch are this sequence's tokens at positions
    `context : context + length`. A decode has length 1; a prefill chunk has more.
    """

    start: int
    length: int
    context: int
    """Tokens of this sequence that earlier steps computed: what is in KV pages and in the state."""
    pages: torch.Tensor
    """int64 [pages]: KV pages of this sequence in order, enough for context + length tokens."""
    state: int
    """Row of the recurrent state pool; unused by models without recurrent layers."""


@dataclass(frozen=True)
class Batch:
    tokens: torch.Tensor
    """int64 [N]"""
    positions: torch.Tensor
    """int64 [N]"""
    sequences: tuple[SequenceSlice, ...]
    logit_rows: torch.Tensor
    """int64 [R]: rows of the batch whose logits are wanted, one for each sequence that samples."""

    @property
    def singles(self) -> int:
        """Sequences of one token."""
        return sum(seq.length == 1 for seq in self.sequences)

    def singles_first(self) -> Batch:
        """The same work with the rows of sequences of one token before all others: itself, if they
        are there already, as in steps that only decode."""
        order = sorted(self.sequences, key=lambda seq: seq.length > 1)
        if order == list(self.sequences):
            return self
        rows: list[int] = []
        moved = []
        for seq in order:
            moved.append(replace(seq, start=len(rows)))
            rows += range(seq.start, seq.start + seq.length)
        taken = torch.tensor(rows, dtype=torch.int64)
        places = torch.empty_like(taken)
        places[taken] = torch.arange(len(rows))
        device = self.tokens.device
        taken, places = taken.to(device), places.to(device)
        return Batch(
            tokens=self.tokens[taken],
            positions=self.positions[taken],
            sequences=tuple(moved),
            logit_rows=places[self.logit_rows],
        )
