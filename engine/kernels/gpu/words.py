"""Sums over words of stored weights: the inner loop of products with few rows.

A weight is decoded once for all rows of the activations and never leaves registers. Every lane of a
tile keeps its own sum over the whole row; lanes are added at the end. So the order of summation
follows from the tile's shape alone.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine.kernels.gpu.codes import (
    BFLOAT16,
    FLOAT32,
    FP8_BLOCK,
    MXFP4,
    NVFP4,
    e4m3,
    e8m0,
    high,
    low,
    pair,
)


@triton.jit
def lift(FORMAT: tl.constexpr):
    """What activations are multiplied with, so that products with halves of words are no
    subnormal numbers. Activations must stay below 2^67."""
    return 1.0 if FORMAT == FLOAT32 or FORMAT == BFLOAT16 else 1152921504606846976.0  # 2^60


@triton.jit
def settle(FORMAT: tl.constexpr):
    """What sums are multiplied with in the end."""
    # 2^120 and 2^126 are missing in the halves; `lift` gave 2^60 of it.
    coded = 1152921504606846976.0 if FORMAT == FP8_BLOCK else 73786976294838206464.0
    return 1.0 if FORMAT == FLOAT32 or FORMAT == BFLOAT16 else coded


@triton.jit
def word_scales(scales, rows, columns, mask, row_scales, FORMAT: tl.constexpr):
    """float32 of the shape of `rows` with `columns`: the scale of each word, in tiles [N, M, W].

    `scales` [1 or N, M, 1] points at the first ones of each tile's matrix: float32 for fp8_block,
    uint8 otherwise, `row_scales` of them in a row (fp8_block: of blocks).
    """
    if FORMAT == FP8_BLOCK:
        value = tl.load(scales + (rows // 128) * row_scales + columns // 32, mask=mask, other=0.0)
    elif FORMAT == NVFP4:
        value = e4m3(tl.load(scales + rows * row_scales + columns // 2, mask=mask, other=0))
    else:
        value = e8m0(tl.load(scales + rows * row_scales + columns // 4, mask=mask, other=0))
    return value


@triton.jit
def word_products(words, x, mask, FORMAT: tl.constexpr, PER: tl.constexpr):
    """float32 [N, M, W]: each word of int32 [N, 1 or M, W] times its activations, PER of each.

    `x` [M, W] points at the first of a word's activations, which follow one another: they are read
    in one piece. What `mask`, of the same shape, leaves out counts as zero.
    """
    if FORMAT == FLOAT32:
        value = tl.load(x, mask=mask, other=0.0).to(tl.float32)
        total = words.to(tl.float32, bitcast=True) * value[None, :, :]
    else:
        within = tl.arange(0, PER)[None, None, :]
        all_ = tl.load(x[:, :, None] + within, mask=mask[:, :, None], other=0.0)
        values = all_.to(tl.float32) * lift(FORMAT)
        if FORMAT == BFLOAT16:
            first, second = tl.split(values)
            total = low(words) * first[None, :, :] + high(words) * second[None, :, :]
        elif FORMAT == FP8_BLOCK:
            # [half, place]
            even, odd = tl.split(tl.reshape(values, (values.shape[0], values.shape[1], 2, 2)))
            total = _both(pair(words, 0, FORMAT), even) + _both(pair(words, 1, FORMAT), odd)
        else:
            # [half, place // 2, place % 2]
            even, odd = tl.split(tl.reshape(values, (values.shape[0], values.shape[1], 4, 2)))
            shape: tl.constexpr = (values.shape[0], values.shape[1], 2, 2)
            x0, x2 = tl.split(tl.reshape(even, shape))
            x1, x3 = tl.split(tl.reshape(odd, shape))
            total = _both(pair(words, 0, FORMAT), x0) + _both(pair(words, 1, FORMAT), x1)
            total += _both(pair(words, 2, FORMAT), x2) + _both(pair(words, 3, FORMAT), x3)
    return total


@triton.jit
def _both(pairs, values):
    """Halves of [N, ., W] times the two last numbers of [M, W, 2]."""
    first, second = tl.split(values)
    return low(pairs) * first[None, :, :] + high(pairs) * second[None, :, :]


@triton.jit
def tile_rows(first, BLOCK_R: tl.constexpr):
    """int32 [BLOCK_R, 1, 1]"""
    return (first + tl.arange(0, BLOCK_R))[:, None, None]


@triton.jit
def tile_columns(first, BLOCK_W: tl.constexpr):
    """int32 [1, 1, BLOCK_W]"""
    return (first + tl.arange(0, BLOCK_W))[None, None, :]
