"""Causal attention of prompt chunks over paged keys and values, all sequences in one launch.

A block computes one head of a tile of rows of one sequence. Keys come in blocks that begin at
multiples of their height, whatever the chunk's first position, and a block of keys that lies wholly
beyond a row changes none of its bits: an output depends on neither chunk, tile nor neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.gpu.ahead import ARCHITECTURES, Ahead
from engine.kernels.gpu.architecture import architecture, dot_type
from engine.kernels.gpu.attention_decode import check_pages

_LOG2_E = math.log2(math.e)


@dataclass(frozen=True)
class Tile:
    rows: int
    positions: int
    warps: int
    stages: int


def tile(arch: int, dim: int) -> Tile:
    """Heads of up to 64, 128 and 256 dimensions."""
    if arch == 90:
        return Tile(128, 64, 8, 3 if dim <= 128 else 2)
    if arch == 80:
        return Tile(128, 64, 8, 2) if dim <= 128 else Tile(64, 64, 8, 2)
    return Tile(64, 64, 4, 2) if dim <= 128 else Tile(64, 32, 8, 2)


@triton.jit(do_not_specialize=["table_row"])
def _attend_tile(
    q,
    keys,
    values,
    table,
    sequences,
    tiles,
    gate,
    out,
    scale,
    q_row,
    q_head,
    page_stride,
    table_row,
    gate_row,
    gate_head,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    GATED: tl.constexpr,
    DOT: tl.constexpr,
):
    # Heads are neighbours in the grid: those that share keys find them in the cache.
    head = tl.program_id(0)
    kv_head = head // (HEADS // KV_HEADS)
    seq = tl.load(tiles + 2 * tl.program_id(1))
    first = tl.load(tiles + 2 * tl.program_id(1) + 1)
    start = tl.load(sequences + 4 * seq)
    length = tl.load(sequences + 4 * seq + 1)
    context = tl.load(sequences + 4 * seq + 2)
    pages = table + tl.load(sequences + 4 * seq + 3) * table_row
    m = first + tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    inside = (m < length)[:, None] & (d < D)[None, :]
    row = (start + m).to(tl.int64)
    query = tl.load(
        q + row[:, None] * q_row + head * q_head + d[None, :], mask=inside, other=0.0
    ).to(DOT)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    end = context + tl.minimum(length, first + BLOCK_M)
    for begin in range(0, end, BLOCK_N):
        position = begin + tl.arange(0, BLOCK_N)
        there = position < end
        page = tl.load(pages + position // PAGE, mask=there, other=0)
        offset = page.to(tl.int64) * page_stride + (position % PAGE * KV_HEADS + kv_head) * D
        key = tl.load(
            keys + offset[None, :] + d[:, None], mask=there[None, :] & (d < D)[:, None], other=0.0
        ).to(DOT)
        value = tl.load(
            values + offset[:, None] + d[None, :],
            mask=there[:, None] & (d < D)[None, :],
            other=0.0,
        ).to(DOT)
        score = tl.dot(query, key, input_precision="ieee") * scale
        score = tl.where(position[None, :] <= context + m[:, None], score, float("-inf"))
        peak = tl.maximum(top, tl.max(score, 1))
        weight = tl.exp2(score - peak[:, None])
        kept = tl.exp2(top - peak)
        total = total * kept + tl.sum(weight, 1)
        acc = acc * kept[:, None]
        acc = tl.dot(weight.to(DOT), value, acc, input_precision="ieee")
        top = peak
    acc = acc / total[:, None]
    if GATED:
        at = gate + row[:, None] * gate_row + head * gate_head + d[None, :]
        acc *= tl.sigmoid(tl.load(at, mask=inside, other=0.0).to(tl.float32))
    tl.store(out + (row[:, None] * HEADS + head) * D + d[None, :], acc, mask=inside)


def prefill_tiles(chunks: Sequence[tuple[int, int]], rows: int) -> list[tuple[int, int]]:
    """(chunk, first row within it) of every tile, those with most keys first.

    `chunks` are (length, context). A tile with many keys that began last would be waited for.
    """
    tiles = [
        (number, first)
        for number, (length, _) in enumerate(chunks)
        for first in range(0, length, rows)
    ]
    return sorted(tiles, key=lambda each: -(chunks[each[0]][1] + each[1]))


def tile_rows(device: torch.device, dim: int) -> int:
    """Height of `prefill_attention`'s tiles for heads of `dim` dimensions."""
    return tile(architecture(device), dim).rows


def prefill_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    sequences: Tensor,
    tiles: Tensor,
    scale: float,
    gate: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Causal attention of the sequences' rows of q [N, heads, D] over pages [pages, page_tokens,
    kv_heads, D], which hold the rows' own keys and values already: [N, heads, D] in q's dtype,
    times sigmoid(gate [N, heads, D]) where there is one. Rows of no sequence stay as they are.

    sequences int32 [C, 4]: first row, length, context, row of the page table; table int32
    [_, max_pages]; tiles int32 [T, 2] from `prefill_tiles` with the height `tile_rows`.
    """
    _, heads, dim = q.shape
    check_pages(q, keys, values)
    if q.stride(2) != 1 or (gate is not None and gate.stride(2) != 1):
        raise ValueError("the dimensions of a head must lie side by side")
    if out is None:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    shape = tile(architecture(q.device), dim)
    _attend_tile[(heads, len(tiles))](
        *(q, keys, values, table, sequences, tiles, q if gate is None else gate, out),
        *(scale * _LOG2_E, q.stride(0), q.stride(1), keys.stride(0), table.stride(0)),
        *((0, 0) if gate is None else (gate.stride(0), gate.stride(1))),
        **_constants(heads, keys.shape[2], dim, keys.shape[1], gate is not None, shape),
        DOT=dot_type(keys.dtype),
        num_warps=shape.warps,
        num_stages=shape.stages,
    )
    return out


def _constants(
    heads: int, kv_heads: int, dim: int, page_tokens: int, gated: bool, shape: Tile
) -> dict[str, int]:
    return {
        "HEADS": heads,
        "KV_HEADS": kv_heads,
        "D": dim,
        "PAGE": page_tokens,
        "BLOCK_M": shape.rows,
        "BLOCK_N": shape.positions,
        "BLOCK_D": max(16, triton.next_power_of_2(dim)),
        "GATED": gated,
    }


def _ahead(model: str, heads: int, kv_heads: int, dim: int, gated: bool) -> tuple[Ahead, ...]:
    pointers = {"q": "*bf16", "keys": "*bf16", "values": "*bf16", "table": "*i32"}
    pointers |= {"sequences": "*i32", "tiles": "*i32", "gate": "*bf16", "out": "*bf16"}
    strides = ("q_row", "q_head", "page_stride", "table_row", "gate_row", "gate_head")
    shapes: dict[Tile, list[int]] = {}
    for arch in ARCHITECTURES:
        shapes.setdefault(tile(arch, dim), []).append(arch)
    return tuple(
        Ahead(
            f"attention_prefill {model} {shape.rows}x{shape.positions}",
            _attend_tile,
            {**pointers, "scale": "fp32", **dict.fromkeys(strides, "i32")},
            {**_constants(heads, kv_heads, dim, 16, gated, shape), "DOT": tl.bfloat16},
            shape.warps,
            shape.stages,
            frozenset(strides) - {"table_row"},
            architectures=tuple(archs),
        )
        for shape, archs in shapes.items()
    )


AHEAD = (
    *_ahead("qwen3.6-35b-a3b", heads=16, kv_heads=2, dim=256, gated=True),
    *_ahead("demo", heads=9, kv_heads=3, dim=64, gated=False),
)
