"""Attention on a GPU: single tokens by one kernel, chunks by another.

A sequence's kernel follows from its own length, so its rows depend on no neighbour.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from engine.kernels.attention_tables import AttentionTables, PagedRows
from engine.kernels.gpu.attention_decode import decode_attention
from engine.kernels.gpu.attention_prefill import prefill_attention, prefill_tiles, tile_rows


def attention_tables(tokens: Tensor, sequences: Sequence[PagedRows], dim: int) -> AttentionTables:
    """As engine.kernels.attention.attention_tables. At least one sequence."""
    device = tokens.device
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
    rows = [seq.start for seq in single]
    leading = rows == list(range(len(rows)))
    return AttentionTables(
        pages=pages.to(torch.int32),
        rows=slice(0, len(rows)) if leading else numbers(rows, torch.int64),
        lengths=numbers([seq.context + 1 for seq in single]),
        chunks=numbers([each for chunk in chunks for each in chunk]).view(-1, 4),
        tiles=numbers([each for tile in tiles for each in tile]).view(-1, 2),
    )


def paged_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    sequences: Sequence[PagedRows],
    scale: float,
    gate: Tensor | None = None,
    tables: AttentionTables | None = None,
) -> Tensor:
    """As engine.kernels.attention.paged_attention."""
    if not sequences:
        return torch.empty_like(q)
    if tables is None:
        tables = attention_tables(q, sequences, q.shape[2])
    return attend(q, keys, values, tables, scale, gate)


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
    singles = len(tables.lengths)
    if singles == len(q) and isinstance(tables.rows, slice):
        return decode_attention(q, keys, values, tables.pages, tables.lengths, scale, gate)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if len(tables.tiles):
        parts = tables.pages, tables.chunks, tables.tiles
        prefill_attention(q, keys, values, *parts, scale, gate, out)
    if singles:
        gates = None if gate is None else gate[tables.rows]
        single = q[tables.rows], keys, values, tables.pages, tables.lengths, scale, gates
        out[tables.rows] = decode_attention(*single)
    return out
