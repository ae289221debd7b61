"""Stored numbers to float32 and bfloat16 by operations on their bits, alike on every architecture.

Weights are read as words of 32 bits. A word holds PER_WORD weights; `pair` makes two of them at
once, one in each half of a register. What it yields is the weight times a power of two that its
format lacks in range: products with words fold it into the activations (2^60) and the scale.
"""

from __future__ import annotations

import triton
import triton.language as tl

FLOAT32 = tl.constexpr(0)
BFLOAT16 = tl.constexpr(1)
FP8_BLOCK = tl.constexpr(2)
NVFP4 = tl.constexpr(3)
MXFP4 = tl.constexpr(4)

NUMBERS = {"float32": 0, "bfloat16": 1, "fp8_block": 2, "nvfp4": 3, "mxfp4": 4}
"""Of the formats that kernels read, as constants of kernels."""
PER_WORD = {"float32": 1, "bfloat16": 2, "fp8_block": 4, "nvfp4": 8, "mxfp4": 8}

_LOW_HALF_TOP = tl.constexpr(16)
_HIGH_HALF = tl.constexpr(-65536)  # 0xFFFF0000


@triton.jit
def e4m3(codes):
    """uint8 to float32, exactly; NaN stays NaN."""
    bits = codes.to(tl.uint16)
    half = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
    value = half.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    return tl.where((bits & 0x7F) == 0x7F, float("nan"), value)


@triton.jit
def e8m0(codes):
    """uint8 to the float32 2^(code - 127), exactly; 255 is NaN."""
    bits = codes.to(tl.int32)
    whole = (bits << 23).to(tl.float32, bitcast=True)
    value = tl.where(bits == 0, 5.877471754111438e-39, whole)
    return tl.where(bits == 255, float("nan"), value)


@triton.jit
def pair(words, place: tl.constexpr, FORMAT: tl.constexpr):
    """Halves of int32 [...]: weights `first(place)` and `second(place)` of each word as the bits of
    two bfloat16 numbers, FACTOR times too small."""
    if FORMAT == BFLOAT16:
        halves = words
    elif FORMAT == FP8_BLOCK:
        top = words << (8 - 8 * place)
        halves = (top & -2147450880) | ((top >> 4) & 0x07F007F0)
    else:
        top = words << (12 - 4 * place)
        halves = (top & -2147450880) | ((top >> 6) & 0x01C001C0)
    return halves


@triton.jit
def low(pairs):
    """float32 of the low halves."""
    return (pairs << _LOW_HALF_TOP).to(tl.float32, bitcast=True)


@triton.jit
def high(pairs):
    """float32 of the high halves."""
    return (pairs & _HIGH_HALF).to(tl.float32, bitcast=True)


FACTOR_TYPE = tl.constexpr(tl.bfloat16 if isinstance(low, triton.JITFunction) else tl.float32)
"""Of what tensor cores multiply: their interpreter cannot with bfloat16, but float32 holds the same
numbers."""
