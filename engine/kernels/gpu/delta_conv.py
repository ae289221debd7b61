"""Causal convolution and silu over the rows of a prefill."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.chunk_table import CHUNK, COLUMNS, FIRST, LENGTH, START, STATE, ChunkTable
from engine.kernels.gpu.ahead import Ahead
from engine.kernels.gpu.delta_math import silu
from engine.kernels.gpu.delta_shapes import QWEN3_NEXT, DeltaShape

ROWS = 16
BLOCK_C = 128
WARPS = 8


@triton.jit
def delta_conv_kernel(
    qkv,
    weight,
    conv,
    chunks,
    mixed,
    qkv_stride,
    conv_stride,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    CHUNK_ROWS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    TABLE: tl.constexpr,
    AT_STATE: tl.constexpr,
    AT_FIRST: tl.constexpr,
    AT_LENGTH: tl.constexpr,
    AT_START: tl.constexpr,
):
    """mixed [rows, CHANNELS] of ROWS rows of a chunk and BLOCK channels. Reads the states of the
    convolution and leaves them as they are: other programs of the launch read them too."""
    parts: tl.constexpr = CHUNK_ROWS // ROWS
    line = chunks + tl.program_id(1) // parts * TABLE
    first = tl.load(line + AT_FIRST)
    before = first - tl.load(line + AT_START)
    inside = tl.program_id(1) % parts * ROWS + tl.arange(0, ROWS)
    there = inside < tl.load(line + AT_LENGTH)
    channels = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    wanted = channels < CHANNELS
    # Places within a chunk are small: one 64-bit address a program and tensor.
    qkv += first.to(tl.int64) * qkv_stride
    mixed += first.to(tl.int64) * CHANNELS
    conv += tl.load(line + AT_STATE).to(tl.int64) * conv_stride
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for tap in tl.static_range(TAPS):
        row = inside - (TAPS - 1) + tap
        fresh = (there & (row + before >= 0))[:, None] & wanted[None, :]
        x = tl.load(qkv + row[:, None] * qkv_stride + channels[None, :], mask=fresh, other=0.0)
        x = x.to(tl.float32)
        if tap < TAPS - 1:  # noqa: SIM102, known when the kernel is compiled, the next is not
            if before < TAPS - 1:
                held = (there & (row + before < 0))[:, None] & wanted[None, :]
                place = channels[None, :] * (TAPS - 1) + (TAPS - 1 + row + before)[:, None]
                x += tl.load(conv + place, mask=held, other=0.0).to(tl.float32)
        x *= tl.load(weight + channels * TAPS + tap, mask=wanted, other=0.0)[None, :]
        total += x
    place = mixed + inside[:, None] * CHANNELS + channels[None, :]
    mask = there[:, None] & wanted[None, :]
    tl.store(place, silu(total).to(mixed.dtype.element_ty), mask=mask)


def _constants(shape: DeltaShape) -> dict[str, int]:
    return {
        "CHANNELS": shape.channels,
        "TAPS": shape.taps,
        "CHUNK_ROWS": CHUNK,
        "ROWS": ROWS,
        "BLOCK": BLOCK_C,
        "TABLE": COLUMNS,
        "AT_STATE": STATE,
        "AT_FIRST": FIRST,
        "AT_LENGTH": LENGTH,
        "AT_START": START,
    }


def delta_conv(
    qkv: Tensor, weight: Tensor, conv: Tensor, table: ChunkTable, shape: DeltaShape
) -> Tensor:
    """[rows, channels] in qkv's dtype; rows outside the table are left undefined.

    The state of the convolution is read for a sequence's first rows and not moved on.
    """
    mixed = torch.empty((len(qkv), shape.channels), dtype=qkv.dtype, device=qkv.device)
    grid = (triton.cdiv(shape.channels, BLOCK_C), len(table.chunks) * (CHUNK // ROWS))
    delta_conv_kernel[grid](
        qkv,
        weight,
        conv,
        table.chunks,
        mixed,
        qkv.stride(0),
        conv.stride(0),
        **_constants(shape),
        num_warps=WARPS,
    )
    return mixed


AHEAD = (
    Ahead(
        "delta_conv",
        delta_conv_kernel,
        {
            "qkv": "*bf16",
            "weight": "*fp32",
            "conv": "*bf16",
            "chunks": "*i32",
            "mixed": "*bf16",
            "qkv_stride": "i32",
            "conv_stride": "i32",
        },
        _constants(QWEN3_NEXT),
        warps=WARPS,
        multiples=frozenset(("qkv_stride", "conv_stride")),
    ),
)
