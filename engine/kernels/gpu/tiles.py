"""Tiles of stored weights as bfloat16, for products on tensor cores. Decoding is exact but for NVFP4's
and MXFP4's block scales, whose products with codes bfloat16 holds as well: no rounding there either.
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
)


@triton.jit
def _numbers(halves, scale, LIFT: tl.constexpr):
    return (halves * LIFT * scale).to(tl.bfloat16)


@triton.jit
def _fp8_numbers(words):
    first = pair(words, 0, FP8_BLOCK)
    second = pair(words, 1, FP8_BLOCK)
    lift: tl.constexpr = 1.329227995784916e36  # 2^120
    even = tl.join(_numbers(low(first), 1.0, lift), _numbers(high(first), 1.0, lift))
    odd = tl.join(_numbers(low(second), 1.0, lift), _numbers(high(second), 1.0, lift))
    return tl.join(even, odd)


@triton.jit
def _fp4_pair(words, scale, place: tl.constexpr):
    halves = pair(words, place, NVFP4)
    lift: tl.constexpr = 1.2676506002282294e30  # 2^100; the scale brings 2^26
    return tl.join(_numbers(low(halves), scale, lift), _numbers(high(halves), scale, lift))


@triton.jit
def _fp4_numbers(words, scale):
    step = scale * 67108864.0  # 2^26
    even = tl.join(_fp4_pair(words, step, 0), _fp4_pair(words, step, 2))
    odd = tl.join(_fp4_pair(words, step, 1), _fp4_pair(words, step, 3))
    return tl.join(even, odd)


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
