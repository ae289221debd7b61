"""One step's work as the layers see it: ragged sequences laid end to end."""

from __future__ import annotations

from dataclasses import dataclass

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
