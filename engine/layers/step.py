"""What all layers of one step share: the batch, where its context lies, and its rotation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.context.batch import Batch, SequenceSlice
from engine.context.kv import KvPages, KvSlots
from engine.context.states import StatePool
from engine.layers.rotary import Rotary


@dataclass(frozen=True)
class Step:
    """`single_*` are the sequences with one token, whose recurrences run together."""

    batch: Batch
    kv: KvPages
    slots: KvSlots
    states: StatePool | None
    cos: Tensor
    sin: Tensor
    single_rows: Tensor
    """int64 [S]: their rows of the batch."""
    single_states: Tensor
    """int64 [S]: their rows of the state pool."""
    chunks: tuple[SequenceSlice, ...]
    """The sequences with more tokens."""

    @staticmethod
    def begin(batch: Batch, kv: KvPages, states: StatePool | None, rotary: Rotary) -> Step:
        """A sequence without context starts from the empty state, whatever its row held before."""
        if states is not None:
            for seq in batch.sequences:
                if seq.context == 0:
                    states.reset(seq.state)
        device = batch.tokens.device
        singles = [seq for seq in batch.sequences if seq.length == 1]
        cos, sin = rotary(batch.positions)
        return Step(
            batch=batch,
            kv=kv,
            slots=kv.slots(batch),
            states=states,
            cos=cos,
            sin=sin,
            single_rows=torch.tensor([s.start for s in singles], dtype=torch.int64, device=device),
            single_states=torch.tensor(
                [s.state for s in singles], dtype=torch.int64, device=device
            ),
            chunks=tuple(seq for seq in batch.sequences if seq.length > 1),
        )
