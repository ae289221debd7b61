"""Tiles of stored weights as bfloat16, for products on tensor cores. Decoding is exact, scales
included: bfloat16 holds the product of a code of four bits and a block's scale.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine.kernels.gpu.codes import (
    BFLOAT16,
    FACTOR_TYPE,
    FP8_BLOCK,
    NVFP4,
    e4m3,
    e8m0,
    high,
    low,
    pair,
    settle,
)


@triton.jit
def _numbers(pairs, scale, FORMAT: tl.constexpr):
    """bfloat16 [..., 2] of the halves times `scale`."""
    first = (low(pairs, FORMAT) * scale).to(tl.bfloat16)
    second = (high(pairs, FORMAT) * scale).to(tl.bfloat16)
    return tl.join(first, second)


@triton.jit
def _fp8_numbers(words):
    even = _numbers(pair(words, 0, FP8_BLOCK), settle(FP8_BLOCK), FP8_BLOCK)
    odd = _numbers(pair(words, 1, FP8_BLOCK), settle(FP8_BLOCK), FP8_BLOCK)
    return tl.join(even, odd)


@triton.jit
def _fp4_numbers(words, scale):
    step = scale * settle(NVFP4)
    n0 = _numbers(pair(words, 0, NVFP4), step, NVFP4)
    n1 = _numbers(pair(words, 1, NVFP4), step, NVFP4)
    n2 = _numbers(pair(words, 2, NVFP4), step, NVFP4)
    n3 = _numbers(pair(words, 3, NVFP4), step, NVFP4)
    return tl.join(tl.join(n0, n2), tl.join(n1, n3))


@triton.jit
def weight_tile(
    weights,
    scales,
    rows,
    first,
    there,
    COLUMNS: tl.constexpr,
    SCALES: tl.constexpr,
    FORMAT: tl.constexpr,
    PER: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """bfloat16 [BLOCK_N, BLOCK_K]: columns `first` onwards of `rows` [BLOCK_N] of a matrix.

    `weights` points at its first element: bfloat16 for that format, words of int32 for others.
    fp8_block's scales are left out: they belong to the product of a block of 128 columns.
    """
    if FORMAT == BFLOAT16:
        columns = first + tl.arange(0, BLOCK_K)
        mask = there[:, None] & (columns < COLUMNS)[None, :]
        tile = tl.load(weights + rows[:, None] * COLUMNS + columns[None, :], mask=mask, other=0.0)
    else:
        columns = first // PER + tl.arange(0, BLOCK_K // PER)
        mask = there[:, None] & (columns < COLUMNS // PER)[None, :]
        at = rows[:, None] * (COLUMNS // PER) + columns[None, :]
        words = tl.load(weights + at, mask=mask, other=0)
        if FORMAT == FP8_BLOCK:
            numbers = _fp8_numbers(words)
        elif FORMAT == NVFP4:
            at = rows[:, None] * SCALES + (columns // 2)[None, :]
            numbers = _fp4_numbers(words, e4m3(tl.load(scales + at, mask=mask, other=0)))
        else:
            at = rows[:, None] * SCALES + (columns // 4)[None, :]
            numbers = _fp4_numbers(words, e8m0(tl.load(scales + at, mask=mask, other=0)))
        tile = tl.reshape(numbers, (BLOCK_N, BLOCK_K))
    return tile.to(FACTOR_TYPE)


@triton.jit
def add_product(
    total,
    x,
    weights,
    scales,
    rows,
    first,
    there,
    COLUMNS: tl.constexpr,
    SCALES: tl.constexpr,
    FORMAT: tl.constexpr,
    PER: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """total float32 [BLOCK_N, M] and a tile times x bfloat16 [BLOCK_K, M].

    The weights are the left factor: what was decoded in registers may stay there.
    """
    left = weight_tile(
        weights, scales, rows, first, there, COLUMNS, SCALES, FORMAT, PER, BLOCK_N, BLOCK_K
    )
    right = x.to(FACTOR_TYPE)
    if FORMAT == FP8_BLOCK:
        scale = tl.load(scales + (rows // 128) * SCALES + first // 128, mask=there, other=0.0)
        total += tl.dot(left, right) * scale[:, None]
    else:
        total = tl.dot(left, right, total)
    return total
