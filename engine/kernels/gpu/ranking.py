"""Values and their places as one number, so that one maximum finds both and ties have an order."""

from __future__ import annotations

import triton
import triton.language as tl

LOWEST = tl.constexpr(-(2**63))
"""Below every key."""


@triton.jit
def ranked(value, index):
    """int64 keys in the order of float32 values; of equal values the lowest index comes first."""
    bits = tl.where(value == 0, 0.0, value).to(tl.int32, bitcast=True)
    # Of negative numbers all bits but the sign turn round: integers then order as floats do.
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - index).to(tl.int64)


@triton.jit
def value_of(key):
    """float32"""
    ordered = (key >> 32).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def index_of(key):
    """int32"""
    return 0x7FFFFFFF - (key & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def highest_of(keys):
    """The highest of keys [N]. Halves one after the other: a warp has an instruction for the
    maximum of 32 bits."""
    upper = (keys >> 32).to(tl.int32)
    high = tl.max(upper, 0)
    low = tl.max(tl.where(upper == high, (keys & 0x7FFFFFFF).to(tl.int32), 0), 0)
    return (high.to(tl.int64) << 32) | low.to(tl.int64)
