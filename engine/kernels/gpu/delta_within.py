"""What a chunk of the gated delta rule can know before its state: all chunks and heads at once.

In the words of the torch reference: with raw keys K, lengths |k_t|, rates b and G the running sum
of log decays, the update of a chunk that starts from state S is

    U = (I + L)^-1 b (V - e^G / |k| (K S))       L[t, i] = b_t e^(G_t - G_i) k_t . k_i, i < t

`solve` is (I + L)^-1 b, `within` the decayed q_t . k_i, and `factors` what rows of K S, Q S and K
are multiplied with. Keys and queries stay raw: products of bfloat16 numbers are exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.chunk_table import CHUNK, COLUMNS, FIRST, LENGTH, ChunkTable
from engine.kernels.delta_layer import DeltaParameters
from engine.kernels.gpu.ahead import Ahead
from engine.kernels.gpu.delta_math import NORM_EPS, log_decay, product, sigmoid
from engine.kernels.gpu.delta_shapes import QWEN3_NEXT, DeltaShape

WARPS = 8
FACTORS = 4
"""Vectors a chunk and head: of K S, of Q S, of K for the next state, and the whole decay."""


@triton.jit
def inverse_of_unit_lower(lower, SIZE: tl.constexpr):
    """(I + lower)^-1 [SIZE, SIZE] float32, lower being zero on and above the diagonal.

    The two halves of the diagonal by forward substitution, side by side, then the corner by
    products. A series of powers would need no substitution, but its terms grow to 10^17 where keys
    repeat.
    """
    half: tl.constexpr = SIZE // 2
    place = tl.arange(0, 2)
    down = place[:, None, None, None]
    across = place[None, None, :, None]
    quarters = tl.reshape(lower, (2, half, 2, half))
    blocks = tl.sum(tl.where(down == across, quarters, 0.0), axis=2)
    line = tl.arange(0, half)
    solved = -blocks
    for i in range(1, half):
        here = (line == i)[None, :, None]
        row = tl.sum(tl.where(here, blocks, 0.0), axis=1)
        known = tl.sum(row[:, :, None] * solved, axis=1)
        solved = tl.where(here, solved - known[:, None, :], solved)
    solved += tl.where((line[:, None] == line[None, :])[None, :, :], 1.0, 0.0)
    upper = tl.sum(tl.where(place[:, None, None] == 0, solved, 0.0), axis=0)
    under = tl.sum(tl.where(place[:, None, None] == 1, solved, 0.0), axis=0)
    below = tl.sum(tl.where(down > across, quarters, 0.0), axis=2)
    corner = tl.sum(below, axis=0)
    corner = product(product(under, corner), upper)
    whole = tl.where(down == across, solved[:, :, None, :], 0.0)
    whole = tl.where(down > across, -corner[None, :, None, :], whole)
    return tl.reshape(whole, (SIZE, SIZE))


@triton.jit
def _one_over_length(x):
    wide = x.to(tl.float32)
    return tl.rsqrt(tl.sum(wide * wide, axis=1) + NORM_EPS)


@triton.jit
def delta_within_kernel(
    mixed,
    b,
    a,
    a_log,
    dt_bias,
    chunks,
    solve,
    within,
    factors,
    b_stride,
    a_stride,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    CHUNK_ROWS: tl.constexpr,
    TABLE: tl.constexpr,
    AT_FIRST: tl.constexpr,
    AT_LENGTH: tl.constexpr,
    VECTORS: tl.constexpr,
):
    """One chunk and value head: its part of `solve` and `within` [T, VALUE_HEADS, CHUNK_ROWS,
    CHUNK_ROWS] and `factors` [T, VALUE_HEADS, VECTORS, CHUNK_ROWS]."""
    channels: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM
    head = tl.program_id(0)
    key_head = head // (VALUE_HEADS // KEY_HEADS)
    chunk = tl.program_id(1).to(tl.int64)
    first = tl.load(chunks + chunk * TABLE + AT_FIRST).to(tl.int64)
    t = tl.arange(0, CHUNK_ROWS)
    there = t < tl.load(chunks + chunk * TABLE + AT_LENGTH)
    a += first * a_stride + head
    b += first * b_stride + head
    x = tl.load(a + t * a_stride, mask=there, other=0.0).to(tl.float32)
    log = log_decay(x, tl.load(a_log + head), tl.load(dt_bias + head))
    run = tl.cumsum(tl.where(there, log, 0.0), axis=0)
    # Never positive below the diagonal; above it, where it would overflow, nothing is used.
    decay = tl.exp(tl.minimum(run[:, None] - run[None, :], 0.0))

    mixed += first * channels + key_head * KEY_DIM
    place = t[:, None] * channels + tl.arange(0, KEY_DIM)[None, :]
    k = tl.load(mixed + KEY_HEADS * KEY_DIM + place, mask=there[:, None], other=0.0)
    unit_k = _one_over_length(k)
    at = chunk * VALUE_HEADS + head
    square = at * CHUNK_ROWS * CHUNK_ROWS + t[:, None] * CHUNK_ROWS + t[None, :]
    # Programs of two kinds: one that did both would run short of registers.
    if tl.program_id(2) == 0:
        x = tl.load(b + t * b_stride, mask=there, other=0.0).to(tl.float32)
        rate = tl.where(there, sigmoid(x), 0.0)
        k_k = product(k, tl.trans(k)) * (rate * unit_k)[:, None] * unit_k[None, :] * decay
        inverse = inverse_of_unit_lower(tl.where(t[:, None] > t[None, :], k_k, 0.0), CHUNK_ROWS)
        tl.store(solve + square, inverse * rate[None, :])
    else:
        q = tl.load(mixed + place, mask=there[:, None], other=0.0)
        unit_q = _one_over_length(q) * (KEY_DIM**-0.5)
        q_k = product(q, tl.trans(k)) * unit_q[:, None] * unit_k[None, :] * decay
        tl.store(within + square, tl.where(t[:, None] >= t[None, :], q_k, 0.0))
        vector = factors + at * VECTORS * CHUNK_ROWS + t
        since_start = tl.exp(run)
        end = tl.sum(tl.where(t == CHUNK_ROWS - 1, run, 0.0), axis=0)
        tl.store(vector, since_start * unit_k)
        tl.store(vector + CHUNK_ROWS, since_start * unit_q)
        tl.store(vector + 2 * CHUNK_ROWS, tl.exp(end - run) * unit_k)
        tl.store(vector + 3 * CHUNK_ROWS, tl.exp(end) + tl.zeros((CHUNK_ROWS,), tl.float32))


@dataclass(frozen=True)
class Within:
    """float32, of T chunks and H value heads."""

    solve: Tensor
    """[T, H, CHUNK, CHUNK]"""
    within: Tensor
    """[T, H, CHUNK, CHUNK]"""
    factors: Tensor
    """[T, H, FACTORS, CHUNK]"""


def _constants(shape: DeltaShape) -> dict[str, int]:
    return {
        "KEY_HEADS": shape.key_heads,
        "VALUE_HEADS": shape.value_heads,
        "KEY_DIM": shape.key_dim,
        "VALUE_DIM": shape.value_dim,
        "CHUNK_ROWS": CHUNK,
        "TABLE": COLUMNS,
        "AT_FIRST": FIRST,
        "AT_LENGTH": LENGTH,
        "VECTORS": FACTORS,
    }


def delta_within(
    mixed: Tensor, b: Tensor, a: Tensor, own: DeltaParameters, table: ChunkTable, shape: DeltaShape
) -> Within:
    """Of the convolution's output [rows, channels] and the gates' projections."""
    lead = (len(table.chunks), shape.value_heads)
    square = (*lead, CHUNK, CHUNK)
    made = Within(
        torch.empty(square, dtype=torch.float32, device=mixed.device),
        torch.empty(square, dtype=torch.float32, device=mixed.device),
        torch.empty((*lead, FACTORS, CHUNK), dtype=torch.float32, device=mixed.device),
    )
    delta_within_kernel[(shape.value_heads, len(table.chunks), 2)](
        mixed,
        b,
        a,
        own.a_log,
        own.dt_bias,
        table.chunks,
        made.solve,
        made.within,
        made.factors,
        b.stride(0),
        a.stride(0),
        **_constants(shape),
        num_warps=WARPS,
    )
    return made


AHEAD = (
    Ahead(
        "delta_within",
        delta_within_kernel,
        {
            **dict.fromkeys(("mixed", "b", "a"), "*bf16"),
            "a_log": "*fp32",
            "dt_bias": "*fp32",
            "chunks": "*i32",
            **dict.fromkeys(("solve", "within", "factors"), "*fp32"),
            "b_stride": "i32",
            "a_stride": "i32",
        },
        _constants(QWEN3_NEXT),
        warps=WARPS,
        multiples=frozenset(("b_stride", "a_stride")),
    ),
)
