"""Sums over words of stored weights: the inner loop of products with one row of activations.

Such a product waits for memory, so all loads of a piece of the rows come before anything is
computed, and activations first of all: they are there before it is known which weights are wanted.
Weights are read as pairs of words of 32 bits, and every other tensor in the same layout, a column
of pairs a lane: nothing is exchanged between lanes before the end. A weight is decoded in
registers. Every lane keeps its own sum over its columns; lanes are added at the end. So the order
of summation follows from the tile's shape alone.
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

PAIR = 2
"""Rows of weights must be pairs of words."""


@triton.jit
def scale_rows(rows, FORMAT: tl.constexpr):
    """Of rows of a matrix: its rows of scales."""
    return rows // 128 if FORMAT == FP8_BLOCK else rows


@triton.jit
def _scales(scales, columns, mask, FORMAT: tl.constexpr):
    """Stored scales of columns of pairs; `scales` points at the first one of each row."""
    if FORMAT == FP8_BLOCK:
        stored = tl.load(scales + columns // 16, mask=mask, other=0.0)
    elif FORMAT == NVFP4:
        stored = tl.load(scales + columns, mask=mask, other=0)
    else:
        stored = tl.load(scales + columns // 2, mask=mask, other=0)
    return stored


@triton.jit
def _scale(stored, FORMAT: tl.constexpr):
    """float32"""
    if FORMAT == FP8_BLOCK:
        value = stored
    elif FORMAT == NVFP4:
        value = e4m3(stored)
    else:
        value = e8m0(stored)
    return value


@triton.jit
def _quad(x, mask):
    """Four numbers that follow one another, as they lie in one or two words of 64 bits."""
    wide = x.to(tl.pointer_type(tl.int64))
    first = tl.load(wide, mask=mask, other=0)
    second = first
    if x.dtype.element_ty.primitive_bitwidth == 32:
        second = tl.load(wide + 1, mask=mask, other=0)
    return first, second


@triton.jit
def _floats(quad, like):
    """The numbers of `_quad`, float32; `like` points at numbers of their type."""
    first, second = quad
    a, b = _halves(first)
    if like.dtype.element_ty.primitive_bitwidth == 32:
        c, d = _halves(second)
        numbers = (
            a.to(tl.float32, bitcast=True),
            b.to(tl.float32, bitcast=True),
            c.to(tl.float32, bitcast=True),
            d.to(tl.float32, bitcast=True),
        )
    else:
        numbers = low(a, BFLOAT16), high(a, BFLOAT16), low(b, BFLOAT16), high(b, BFLOAT16)
    return numbers


@triton.jit
def _halves(pairs):
    """int32 of the lower and of the upper word."""
    return pairs.to(tl.int32), (pairs >> 32).to(tl.int32)


@triton.jit
def _two(halves, first, second, FORMAT: tl.constexpr):
    return low(halves, FORMAT) * first + high(halves, FORMAT) * second


@triton.jit
def _word_of_four_bits(words, x, y):
    """Eight weights times the numbers of two quads. Half a word lies between those of a pair."""
    total = _two(pair(words, 0, NVFP4), x[0], y[0], NVFP4)
    total += _two(pair(words, 1, NVFP4), x[1], y[1], NVFP4)
    total += _two(pair(words, 2, NVFP4), x[2], y[2], NVFP4)
    total += _two(pair(words, 3, NVFP4), x[3], y[3], NVFP4)
    return total


@triton.jit
def _word_of_eight_bits(words, x):
    total = _two(pair(words, 0, FP8_BLOCK), x[0], x[2], FP8_BLOCK)
    total += _two(pair(words, 1, FP8_BLOCK), x[1], x[3], FP8_BLOCK)
    return total


@triton.jit
def _pair_sums(words, scales, x, columns, mask, read, FORMAT: tl.constexpr, PER: tl.constexpr):
    """float32 [R, W]: pairs of words at `words`, times their activations and scales."""
    x += columns * (2 * PER)
    x0 = _quad(x, read)
    x1 = x0
    x2 = x0
    x3 = x0
    if PER >= 4:
        x1 = _quad(x + 4, read)
    if PER == 8:
        x2 = _quad(x + 8, read)
        x3 = _quad(x + 12, read)
    # Loads stay in their order, but one that is the last may be put off until it is needed.
    if FORMAT != BFLOAT16:
        stored = _scales(scales, columns, mask, FORMAT)
    tile = tl.load(words + columns, mask=mask, other=0)
    first, second = _halves(tile)
    if PER == 8:
        total = _word_of_four_bits(first, _floats(x0, x), _floats(x1, x))
        total += _word_of_four_bits(second, _floats(x2, x), _floats(x3, x))
    elif PER == 4:
        total = _word_of_eight_bits(first, _floats(x0, x))
        total += _word_of_eight_bits(second, _floats(x1, x))
    else:
        numbers = _floats(x0, x)
        total = _two(first, numbers[0], numbers[1], FORMAT)
        total += _two(second, numbers[2], numbers[3], FORMAT)
    if FORMAT != BFLOAT16:
        total *= _scale(stored, FORMAT)
    return total


@triton.jit
def row_sums(
    words,
    scales,
    x,
    rows,
    of_scales,
    there,
    WIDTH: tl.constexpr,
    SCALES: tl.constexpr,
    FORMAT: tl.constexpr,
    PER: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """float32 [BLOCK_R]: rows of a matrix times one row of activations.

    `words` and `scales` point at the matrix's first ones, or are such pointers [R, 1]; `x` at the
    first of the activations. `rows` [R, 1] and their rows of scales `of_scales` (`scale_rows`);
    `there` [R, 1] says which are wanted. WIDTH is a row's words.
    """
    if FORMAT == FLOAT32:
        total = tl.zeros((BLOCK_R, BLOCK_W), tl.float32)
        for start in tl.static_range(0, WIDTH, BLOCK_W):
            columns = start + tl.arange(0, BLOCK_W)[None, :]
            read = columns < WIDTH
            value = tl.load(x + columns, mask=read, other=0.0).to(tl.float32)
            tile = tl.load(words + rows * WIDTH + columns, mask=there & read, other=0)
            total += tile.to(tl.float32, bitcast=True) * value
    else:
        # As if columns did not follow one another: a lane has one of each tensor at a time, and so
        # all have one layout.
        lanes = tl.max_contiguous(tl.arange(0, BLOCK_W // 2)[None, :], [1, 1])
        total = tl.zeros((BLOCK_R, BLOCK_W // 2), tl.float32)
        pairs = words.to(tl.pointer_type(tl.int64)) + rows * (WIDTH // 2)
        for start in tl.static_range(0, WIDTH // 2, BLOCK_W // 2):
            columns = start + lanes
            read = columns < WIDTH // 2
            scale = scales + of_scales * SCALES
            total += _pair_sums(pairs, scale, x, columns, there & read, read, FORMAT, PER)
    return tl.sum(total, axis=1) * settle(FORMAT)


@triton.jit
def tile_rows(first, BLOCK_R: tl.constexpr):
    """int32 [BLOCK_R, 1]"""
    return (first + tl.arange(0, BLOCK_R))[:, None]
