"""What all layers of one step share: the batch, where its context lies, and its rotation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.context.batch import Batch, SequenceSlice
from engine.context.kv import KvPages, KvSlots
from engine.context.states import StatePool
from engine.kernels.attention import attention_tables
from engine.kernels.attention_tables import AttentionTables
from engine.kernels.chunk_table import ChunkRun, ChunkTable, even_lengths
from engine.kernels.places import decode_places
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
class DecodeRows:
    """One token of each of S sequences, in tensors of the device that a captured graph reads again
    and again. A row of no sequence has a length of 0, -1 as its state and pages of -1."""

    tokens: Tensor
    """int64 [S]"""
    positions: Tensor
    """int64 [S]"""
    lengths: Tensor
    """int64 [S]: positions of each sequence, this one among them."""
    states: Tensor
    """int64 [S]: rows of the state pool."""
    pages: Tensor
    """int32 [S, most]: each sequence's pages, then -1."""


@dataclass(frozen=True)
class Step:
    tokens: Tensor
    """int64 [N]; the first `singles` rows are the sequences with one token."""
    singles: int
    sequences: tuple[SequenceSlice, ...]
    """Empty in a step that only decodes: its tables say all."""
    logit_rows: Tensor | slice
    """Rows whose logits are wanted, one for each sequence that samples."""
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
            tokens=batch.tokens,
            singles=batch.singles,
            sequences=batch.sequences,
            logit_rows=batch.logit_rows,
            kv=kv,
            slots=kv.slots(batch),
            attention=attention_tables(batch.tokens, batch.sequences, kv.head_dim),
            states=None if states is None else _step_states(batch, states),
            cos=cos,
            sin=sin,
        )

    @staticmethod
    def decode(rows: DecodeRows, kv: KvPages, states: StatePool | None, rotary: Rotary) -> Step:
        """Of rows that are read on the device alone, for a GPU. Every sequence has context."""
        positions, singles = rows.positions, len(rows.tokens)
        size, turns = kv.page_tokens, (rotary.inverse, rotary.factor)
        places = decode_places(positions, rows.lengths, rows.pages, size, *turns)
        nothing = torch.empty(0, 4, dtype=torch.int32, device=positions.device)
        return Step(
            tokens=rows.tokens,
            singles=singles,
            sequences=(),
            logit_rows=slice(None),
            kv=kv,
            slots=KvSlots(places.pages, places.offsets),
            attention=AttentionTables(
                pages=rows.pages,
                rows=slice(0, singles),
                lengths=places.lengths,
                chunks=nothing,
                tiles=nothing[:, :2],
            ),
            states=None
            if states is None
            else StepStates(states, rows.states, ChunkTable.none(positions.device)),
            cos=places.cos,
            sin=places.sin,
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
