"""The gated delta rule from chunk to chunk: states in registers, outputs on the way."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.chunk_table import (
    CHUNK,
    COLUMNS,
    FIRST,
    KEPT,
    LENGTH,
    START,
    STATE,
    ChunkTable,
)
from engine.kernels.gpu.ahead import Ahead
from engine.kernels.gpu.delta_math import add_product, add_products, leave_inputs, product
from engine.kernels.gpu.delta_shapes import QWEN3_NEXT, DeltaShape
from engine.kernels.gpu.delta_within import FACTORS, Within

BLOCK_V = 16
"""Columns of a head's state a program: with 32 registers spill. One sequence of 32 heads and 128
columns gives 256 programs."""
WARPS = 4


@triton.jit
def delta_scan_kernel(
    qkv,
    mixed,
    solve,
    within,
    factors,
    chunks,
    runs,
    conv,
    recurrent,
    kept_conv,
    kept_recurrent,
    out,
    qkv_stride,
    conv_stride,
    recurrent_stride,
    kept_conv_stride,
    kept_recurrent_stride,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    TAPS: tl.constexpr,
    CHUNK_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    SLICE: tl.constexpr,
    BLOCK_C: tl.constexpr,
    VECTORS: tl.constexpr,
    TABLE: tl.constexpr,
    AT_STATE: tl.constexpr,
    AT_FIRST: tl.constexpr,
    AT_LENGTH: tl.constexpr,
    AT_START: tl.constexpr,
    AT_KEPT: tl.constexpr,
):
    """One run of chunks, BLOCK columns of one head, and the convolution's state of SLICE channels:
    out float32 [rows, VALUE_HEADS, VALUE_DIM], states in place, copies where the table says so."""
    channels: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM
    parts: tl.constexpr = VALUE_DIM // BLOCK
    head = tl.program_id(0) // parts
    run = tl.program_id(1)
    begin = tl.load(runs + run)
    end = tl.load(runs + run + 1)
    if begin == end:
        return
    half: tl.constexpr = KEY_DIM // 2
    keys = tl.arange(0, half)
    t = tl.arange(0, CHUNK_ROWS)
    row = tl.load(chunks + begin * TABLE + AT_STATE).to(tl.int64)
    part = (tl.program_id(0) % parts) * BLOCK
    columns = tl.arange(0, BLOCK)
    recurrent += head * KEY_DIM * VALUE_DIM + part
    kept_recurrent += head * KEY_DIM * VALUE_DIM + part
    cells = keys[:, None] * VALUE_DIM + columns[None, :]
    upper = tl.load(recurrent + row * recurrent_stride + cells)
    under = tl.load(recurrent + row * recurrent_stride + half * VALUE_DIM + cells)

    key = head // (VALUE_HEADS // KEY_HEADS) * KEY_DIM
    raw = t[:, None] * channels + keys[None, :]
    value = 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM + part - key
    values = t[:, None] * channels + columns[None, :]
    square = t[:, None] * CHUNK_ROWS + t[None, :]
    out += head * VALUE_DIM + part
    result = t[:, None] * (VALUE_HEADS * VALUE_DIM) + columns[None, :]

    for chunk in range(begin, end):
        line = chunks + chunk * TABLE
        first = tl.load(line + AT_FIRST).to(tl.int64)
        length = tl.load(line + AT_LENGTH)
        kept = tl.load(line + AT_KEPT).to(tl.int64)
        there = (t < length)[:, None]
        at = chunk * VALUE_HEADS + head.to(tl.int64)
        vector = factors + at * VECTORS * CHUNK_ROWS + t
        rows = mixed + first * channels + key

        k = tl.load(rows + KEY_HEADS * KEY_DIM + raw, mask=there, other=0.0)
        q = tl.load(rows + raw, mask=there, other=0.0)
        by_key = tl.zeros((CHUNK_ROWS, BLOCK), tl.float32)
        by_query = tl.zeros((CHUNK_ROWS, BLOCK), tl.float32)
        by_key, by_query = add_products(by_key, by_query, k, q, upper)
        # Barriers keep loads from being moved up to where registers are short.
        tl.debug_barrier()
        k = tl.load(rows + KEY_HEADS * KEY_DIM + half + raw, mask=there, other=0.0)
        q = tl.load(rows + half + raw, mask=there, other=0.0)
        by_key, by_query = add_products(by_key, by_query, k, q, under)

        tl.debug_barrier()
        v = tl.load(rows + value + values, mask=there, other=0.0).to(tl.float32)
        right = v - tl.load(vector)[:, None] * by_key
        update = product(tl.load(solve + at * CHUNK_ROWS * CHUNK_ROWS + square), right)
        tl.debug_barrier()
        o = by_query * tl.load(vector + CHUNK_ROWS)[:, None]
        o = add_product(o, tl.load(within + at * CHUNK_ROWS * CHUNK_ROWS + square), update)
        tl.store(out + first * (VALUE_HEADS * VALUE_DIM) + result, o, mask=there)

        to_end = tl.load(vector + 2 * CHUNK_ROWS)[:, None] * update
        whole = tl.load(factors + (at * VECTORS + 3) * CHUNK_ROWS)
        # Keys once more: kept since their first use, they would take registers.
        tl.debug_barrier()
        k = tl.load(rows + KEY_HEADS * KEY_DIM + raw, mask=there, other=0.0)
        k_2 = tl.load(rows + KEY_HEADS * KEY_DIM + half + raw, mask=there, other=0.0)
        upper, under = add_products(
            whole * upper, whole * under, tl.trans(k), tl.trans(k_2), to_end
        )
        if kept >= 0:
            copy = kept_recurrent + kept * kept_recurrent_stride + cells
            tl.store(copy, upper)
            tl.store(copy + half * VALUE_DIM, under)

    # What only the end needs is read and computed here, so that it takes no registers above.
    last = chunks + (end - 1) * TABLE
    row = tl.load(last + AT_STATE).to(tl.int64)
    recurrent += row * recurrent_stride + cells
    tl.store(recurrent, upper)
    tl.store(recurrent + half * VALUE_DIM, under)

    start = tl.load(last + AT_START).to(tl.int64)
    conv += row * conv_stride
    inside = tl.arange(0, BLOCK_C)
    own = tl.program_id(0) * SLICE + inside
    mask = (inside < SLICE) & (own < channels)
    for chunk in range(begin, end):
        line = chunks + chunk * TABLE
        kept = tl.load(line + AT_KEPT).to(tl.int64)
        if kept >= 0:
            stop = tl.load(line + AT_FIRST).to(tl.int64) + tl.load(line + AT_LENGTH)
            copy = kept_conv + kept * kept_conv_stride
            leave_inputs(qkv, qkv_stride, start, stop, conv, copy, own, mask, TAPS)
    stop = tl.load(last + AT_FIRST).to(tl.int64) + tl.load(last + AT_LENGTH)
    leave_inputs(qkv, qkv_stride, start, stop, conv, conv, own, mask, TAPS)


def _constants(shape: DeltaShape) -> dict[str, int]:
    block = min(BLOCK_V, shape.value_dim)
    each = triton.cdiv(shape.channels, shape.value_heads * (shape.value_dim // block))
    return {
        "KEY_HEADS": shape.key_heads,
        "VALUE_HEADS": shape.value_heads,
        "KEY_DIM": shape.key_dim,
        "VALUE_DIM": shape.value_dim,
        "TAPS": shape.taps,
        "CHUNK_ROWS": CHUNK,
        "BLOCK": block,
        "SLICE": each,
        "BLOCK_C": triton.next_power_of_2(each),
        "VECTORS": FACTORS,
        "TABLE": COLUMNS,
        "AT_STATE": STATE,
        "AT_FIRST": FIRST,
        "AT_LENGTH": LENGTH,
        "AT_START": START,
        "AT_KEPT": KEPT,
    }


def delta_scan(
    qkv: Tensor,
    mixed: Tensor,
    made: Within,
    conv: Tensor,
    recurrent: Tensor,
    table: ChunkTable,
    shape: DeltaShape,
    kept: tuple[Tensor, Tensor],
) -> Tensor:
    """float32 [rows, value_heads, value_dim]; both states move on, copies go to the pool `kept`."""
    constants = _constants(shape)
    programs = shape.value_heads * (shape.value_dim // constants["BLOCK"])
    size = (len(qkv), shape.value_heads, shape.value_dim)
    out = torch.empty(size, dtype=torch.float32, device=qkv.device)
    delta_scan_kernel[(programs, len(table.runs) - 1)](
        qkv,
        mixed,
        made.solve,
        made.within,
        made.factors,
        table.chunks,
        table.runs,
        conv,
        recurrent,
        *kept,
        out,
        qkv.stride(0),
        conv.stride(0),
        recurrent.stride(0),
        kept[0].stride(0),
        kept[1].stride(0),
        **constants,
        num_warps=WARPS,
    )
    return out


_STRIDES = (
    "qkv_stride",
    "conv_stride",
    "recurrent_stride",
    "kept_conv_stride",
    "kept_recurrent_stride",
)
AHEAD = (
    Ahead(
        "delta_scan",
        delta_scan_kernel,
        {
            **dict.fromkeys(("qkv", "mixed"), "*bf16"),
            **dict.fromkeys(("solve", "within", "factors"), "*fp32"),
            **dict.fromkeys(("chunks", "runs"), "*i32"),
            "conv": "*bf16",
            "recurrent": "*fp32",
            "kept_conv": "*bf16",
            "kept_recurrent": "*fp32",
            "out": "*fp32",
            **dict.fromkeys(_STRIDES, "i32"),
        },
        _constants(QWEN3_NEXT),
        warps=WARPS,
        multiples=frozenset(_STRIDES),
    ),
)
