"""Stored numbers to float32 and bfloat16 by operations on their bits, alike on every architecture.

Weights are read as words of 32 bits, and two weights of a word are decoded at once, one in each
half of a register: as bfloat16 they are there already, codes of 8 and 4 bits become float16 numbers
that are `settle` times too small. (float16 holds all of them, subnormal ones too.)
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
    """int32: numbers `place` and `place` + half a word's of each word, as bits of two halves."""
    if FORMAT == BFLOAT16:
        halves = words
    elif FORMAT == FP8_BLOCK:
        top = words << (8 - 8 * place)
        halves = (top & -2147450880) | ((top >> 1) & 0x3F803F80)
    else:
        top = words << (12 - 4 * place)
        halves = (top & -2147450880) | ((top >> 3) & 0x0E000E00)
    return halves


@triton.jit
def settle(FORMAT: tl.constexpr):
    """What products with decoded weights are still to be multiplied with."""
    coded = 256.0 if FORMAT == FP8_BLOCK else 16384.0
    return 1.0 if FORMAT == FLOAT32 or FORMAT == BFLOAT16 else coded  # noqa: SIM109


@triton.jit
def low(pairs, FORMAT: tl.constexpr):
    """float32 of the low halves."""
    if FORMAT == BFLOAT16:
        value = (pairs << 16).to(tl.float32, bitcast=True)
    else:
        value = (pairs & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return value


@triton.jit
def high(pairs, FORMAT: tl.constexpr):
    """float32 of the high halves."""
    if FORMAT == BFLOAT16:
        value = (pairs & -65536).to(tl.float32, bitcast=True)
    else:
        value = (pairs >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return value


FACTOR_TYPE = tl.constexpr(tl.bfloat16 if isinstance(low, triton.JITFunction) else tl.float32)
"""Of what tensor cores multiply: their interpreter cannot with bfloat16, but float32 holds the same
numbers."""
