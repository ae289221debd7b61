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
    NVFP4,
    e4m3,
    e8m0,
    high,
    low,
    pair,
    settle,
)


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
def _add(total, pairs, values, FORMAT: tl.constexpr):
    """total [N, M, W] and halves of [N, ., W] times the two last numbers of [M, W, 2]."""
    first, second = tl.split(values)
    total += low(pairs, FORMAT) * first[None, :, :]
    total += high(pairs, FORMAT) * second[None, :, :]
    return total


@triton.jit
def word_products(words, x, mask, FORMAT: tl.constexpr, PER: tl.constexpr):
    """float32 [N, M, W]: each word of int32 [N, 1 or M, W] times its activations, PER of each.

    `x` [M, W] points at the first of a word's activations, which follow one another: they are read
    in one piece. What `mask`, of the same shape, leaves out counts as zero.
    """
    M: tl.constexpr = x.shape[0]
    W: tl.constexpr = x.shape[1]
    total = tl.zeros((words.shape[0], M, W), tl.float32)
    if FORMAT == FLOAT32:
        value = tl.load(x, mask=mask, other=0.0).to(tl.float32)
        total += words.to(tl.float32, bitcast=True) * value[None, :, :]
    else:
        within = tl.arange(0, PER)[None, None, :]
        values = tl.load(x[:, :, None] + within, mask=mask[:, :, None], other=0.0).to(tl.float32)
        if FORMAT == BFLOAT16:
            total = _add(total, words, values, FORMAT)
        elif FORMAT == FP8_BLOCK:
            # A word's numbers are [half, place].
            x0, x1 = tl.split(tl.reshape(values, (M, W, 2, 2)))
            total = _add(total, pair(words, 0, FORMAT), x0, FORMAT)
            total = _add(total, pair(words, 1, FORMAT), x1, FORMAT)
        else:
            # A word's numbers are [half, place // 2, place % 2].
            even, odd = tl.split(tl.reshape(values, (M, W, 4, 2)))
            x0, x2 = tl.split(tl.reshape(even, (M, W, 2, 2)))
            x1, x3 = tl.split(tl.reshape(odd, (M, W, 2, 2)))
            total = _add(total, pair(words, 0, FORMAT), x0, FORMAT)
            total = _add(total, pair(words, 1, FORMAT), x1, FORMAT)
            total = _add(total, pair(words, 2, FORMAT), x2, FORMAT)
            total = _add(total, pair(words, 3, FORMAT), x3, FORMAT)
    return total


@triton.jit
def row_sums(
    words,
    scales,
    x,
    rows,
    there,
    WIDTH: tl.constexpr,
    SCALES: tl.constexpr,
    FORMAT: tl.constexpr,
    PER: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """float32 [BLOCK_R, BLOCK_M]: rows of BLOCK_M matrices, each times its own activations.

    `words` and `scales` [1, M, 1] point at the matrices' first ones and `x` [M, 1] at the
    activations'; `rows` [R, 1, 1]; `there` [R, M, 1]. WIDTH is a row's words.
    """
    total = tl.zeros((BLOCK_R, BLOCK_M, BLOCK_W), tl.float32)
    for start in tl.static_range(0, WIDTH, BLOCK_W):
        columns = tile_columns(start, BLOCK_W)
        mask = there & (columns < WIDTH)
        tile = tl.load(words + rows * WIDTH + columns, mask=mask, other=0)
        column = start + tl.arange(0, BLOCK_W)[None, :]
        read = tl.broadcast_to(column < WIDTH, (BLOCK_M, BLOCK_W))
        products = word_products(tile, x + column * PER, read, FORMAT, PER)
        if FORMAT == FLOAT32 or FORMAT == BFLOAT16:  # noqa: SIM109
            total += products
        else:
            total += products * word_scales(scales, rows, columns, mask, SCALES, FORMAT)
    return tl.sum(total, axis=2) * settle(FORMAT)


@triton.jit
def tile_rows(first, BLOCK_R: tl.constexpr):
    """int32 [BLOCK_R, 1, 1]"""
    return (first + tl.arange(0, BLOCK_R))[:, None, None]


@triton.jit
def tile_columns(first, BLOCK_W: tl.constexpr):
    """int32 [1, 1, BLOCK_W]"""
    return (first + tl.arange(0, BLOCK_W))[None, None, :]
