"""The operation `paged_attention` on a GPU: single tokens by one kernel, chunks by another.

A sequence's kernel follows from its own length, so its rows depend on no neighbour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from engine.kernels.attention import PagedRows
from engine.kernels.gpu.attention_decode import decode_attention
from engine.kernels.gpu.attention_prefill import prefill_attention, prefill_tiles, tile_rows


@dataclass(frozen=True)
class AttentionTables:
    """A step's sequences as the kernels read them, single tokens first."""

    pages: Tensor
    """int32 [S, max_pages]: each sequence's pages, then zeros."""
    rows: Tensor
    """int64 [D]: rows of the batch that are a sequence of one token."""
    lengths: Tensor
    """int32 [D]: positions of these sequences, the new one among them."""
    chunks: Tensor
    """int32 [S - D, 4]: first row, length, context, row of `pages`."""
    tiles: Tensor
    """int32 [T, 2]: chunk and first row within it."""

    @staticmethod
    def of(sequences: Sequence[PagedRows], dim: int) -> AttentionTables:
        """For heads of `dim` dimensions. At least one sequence."""
        device = sequences[0].pages.device
        single = [seq for seq in sequences if seq.length == 1]
        longer = [seq for seq in sequences if seq.length > 1]
        chunks = [
            (seq.start, seq.length, seq.context, len(single) + number)
            for number, seq in enumerate(longer)
        ]
        tiles = prefill_tiles([(seq.length, seq.context) for seq in longer], tile_rows(device, dim))

        def numbers(values: list[int], dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        pages = pad_sequence([seq.pages for seq in (*single, *longer)], batch_first=True)
        return AttentionTables(
            pages=pages.to(torch.int32),
            rows=numbers([seq.start for seq in single], torch.int64),
            lengths=numbers([seq.context + 1 for seq in single]),
            chunks=numbers([each for chunk in chunks for each in chunk]).view(-1, 4),
            tiles=numbers([each for tile in tiles for each in tile]).view(-1, 2),
        )


class _LastTables:
    """Made once a step, then asked for by every layer."""

    def __init__(self) -> None:
        self._sequences: Sequence[PagedRows] = ()
        self._dim = 0
        self._tables: AttentionTables | None = None

    def of(self, sequences: Sequence[PagedRows], dim: int) -> AttentionTables:
        # The sequences of the last call are held here, so they are these only if they are the same.
        same = sequences is self._sequences and isinstance(sequences, tuple) and dim == self._dim
        if self._tables is None or not same:
            self._tables = AttentionTables.of(sequences, dim)
            self._sequences, self._dim = sequences, dim
        return self._tables


_last = _LastTables()


def paged_attention(
    q: Tensor, keys: Tensor, values: Tensor, sequences: Sequence[PagedRows], scale: float
) -> Tensor:
    """As engine.kernels.attention.paged_attention."""
    if not sequences:
        return torch.empty_like(q)
    return attend(q, keys, values, _last.of(sequences, q.shape[2]), scale)


def attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: AttentionTables,
    scale: float,
    gate: Tensor | None = None,
) -> Tensor:
    """Attention of all rows of q [N, heads, D], times sigmoid(gate [N, heads, D]) where there is
    one: [N, heads, D] in q's dtype. Rows of no sequence are not written."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if len(tables.tiles):
        parts = tables.pages, tables.chunks, tables.tiles
        prefill_attention(q, keys, values, *parts, scale, gate, out)
    if len(tables.rows):
        gates = None if gate is None else gate[tables.rows]
        single = q[tables.rows], keys, values, tables.pages, tables.lengths, scale, gates
        out[tables.rows] = decode_attention(*single)
    return out
