"""What all layers of one step share: the batch, where its context lies, and its rotation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.context.batch import Batch
from engine.context.kv import KvPages, KvSlots
from engine.context.states import StatePool
from engine.kernels.attention import attention_tables
from engine.kernels.attention_tables import AttentionTables
from engine.kernels.chunk_table import ChunkRun, ChunkTable, even_lengths
from engine.layers.rotary import Rotary


@dataclass(frozen=True)
class StepStates:
    """The batch's rows of the state pool."""

    pool: StatePool
    singles: Tensor
    """int64 [S]: of the sequences with one token."""
    chunks: ChunkTable
    """Of the sequences with more; rows are counted from the first of theirs."""


@dataclass(frozen=True)
class Step:
    batch: Batch
    """Its first `singles` rows are the sequences with one token."""
    singles: int
    kv: KvPages
    slots: KvSlots
    attention: AttentionTables | None
    states: StepStates | None
    """None for a model without recurrent layers."""
    cos: Tensor
    sin: Tensor

    @staticmethod
    def begin(batch: Batch, kv: KvPages, states: StatePool | None, rotary: Rotary) -> Step:
        """A sequence without context starts from the empty state, whatever its row held before."""
        batch = batch.singles_first()
        cos, sin = rotary(batch.positions)
        return Step(
            batch=batch,
            singles=batch.singles,
            kv=kv,
            slots=kv.slots(batch),
            attention=attention_tables(batch.tokens, batch.sequences, kv.head_dim),
            states=None if states is None else _step_states(batch, states),
            cos=cos,
            sin=sin,
        )


def _step_states(batch: Batch, pool: StatePool) -> StepStates:
    for seq in batch.sequences:
        if seq.context == 0:
            pool.reset(seq.state)
    device, singles = batch.tokens.device, batch.singles
    runs = [
        ChunkRun(seq.state, seq.start - singles, even_lengths(seq.length))
        for seq in batch.sequences[singles:]
    ]
    rows = [seq.state for seq in batch.sequences[:singles]]
    return StepStates(
        pool=pool,
        singles=torch.tensor(rows, dtype=torch.int64, device=device),
        chunks=ChunkTable.build(runs, device),
    )
