"""Rotations and places of rows, as engine.kernels.places defines them, in one launch.

One function makes the rotations of all steps, so that a position has the same in every one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.gpu.ahead import Ahead
from engine.kernels.places import DecodePlaces


@triton.jit
def _sine_and_cosine(angle):
    """Of float32, by their series about the nearest quarter turn, in float64: no angle is too large
    and the results are rounded once. (The library's own keep an array for large angles.)"""
    wide = angle.to(tl.float64)
    quarters = tl.floor(wide * 0.6366197723675814 + 0.5)
    rest = wide - quarters * 1.5707963267948966
    square = rest * rest
    sine = 1.0 - square * (1.0 / 110.0)
    sine = 1.0 - square * (1.0 / 72.0) * sine
    sine = 1.0 - square * (1.0 / 42.0) * sine
    sine = 1.0 - square * (1.0 / 20.0) * sine
    sine = rest * (1.0 - square * (1.0 / 6.0) * sine)
    cosine = 1.0 - square * (1.0 / 132.0)
    cosine = 1.0 - square * (1.0 / 90.0) * cosine
    cosine = 1.0 - square * (1.0 / 56.0) * cosine
    cosine = 1.0 - square * (1.0 / 30.0) * cosine
    cosine = 1.0 - square * (1.0 / 12.0) * cosine
    cosine = 1.0 - square * (1.0 / 2.0) * cosine
    turn = quarters.to(tl.int64) & 3
    odd = (turn & 1) == 1
    own = tl.where(odd, cosine, sine)
    other = tl.where(odd, sine, cosine)
    own = tl.where(turn >= 2, -own, own)
    other = tl.where((turn == 1) | (turn == 2), -other, other)
    return own.to(tl.float32), other.to(tl.float32)


@triton.jit
def _turn(cos, sin, inverse, position, row, factor, HALF: tl.constexpr, BLOCK: tl.constexpr):
    pair = tl.arange(0, BLOCK)
    mask = pair < HALF
    angle = position.to(tl.float32) * tl.load(inverse + pair, mask=mask, other=0.0)
    sine, cosine = _sine_and_cosine(angle)
    tl.store(cos + row * HALF + pair, cosine * factor, mask=mask)
    tl.store(sin + row * HALF + pair, sine * factor, mask=mask)


@triton.jit
def rotations_kernel(positions, inverse, cos, sin, factor, HALF: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    _turn(cos, sin, inverse, tl.load(positions + row), row, factor, HALF, BLOCK)


@triton.jit
def decode_places_kernel(
    positions,
    lengths,
    table,
    inverse,
    pages,
    offsets,
    narrow,
    cos,
    sin,
    factor,
    table_row,
    PAGE: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    position = tl.load(positions + row)
    tl.store(pages + row, tl.load(table + row * table_row + position // PAGE).to(tl.int64))
    tl.store(offsets + row, position % PAGE)
    tl.store(narrow + row, tl.load(lengths + row).to(tl.int32))
    _turn(cos, sin, inverse, position, row, factor, HALF, BLOCK)


def _rotation_of(count: int, inverse: Tensor) -> tuple[Tensor, Tensor]:
    shape = count, len(inverse)
    return torch.empty_like(inverse.expand(shape)), torch.empty_like(inverse.expand(shape))


def rotations(positions: Tensor, inverse: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """As engine.kernels.places.rotations."""
    cos, sin = _rotation_of(len(positions), inverse)
    if len(positions):
        arguments = positions.contiguous(), inverse, cos, sin, factor
        rotations_kernel[(len(positions),)](*arguments, **_constants(len(inverse)), num_warps=1)
    return cos, sin


def decode_places(
    positions: Tensor,
    lengths: Tensor,
    pages: Tensor,
    page_tokens: int,
    inverse: Tensor,
    factor: float,
) -> DecodePlaces:
    """As engine.kernels.places.decode_places. A CUDA graph may hold this call."""
    found = DecodePlaces(
        torch.empty_like(positions),
        torch.empty_like(positions),
        torch.empty_like(positions, dtype=torch.int32),
        *_rotation_of(len(positions), inverse),
    )
    decode_places_kernel[(len(positions),)](
        *(positions.contiguous(), lengths.contiguous(), pages, inverse),
        *(found.pages, found.offsets, found.lengths, found.cos, found.sin),
        *(factor, pages.stride(0)),
        PAGE=page_tokens,
        **_constants(len(inverse)),
        num_warps=1,
    )
    return found


def _constants(half: int) -> dict[str, int]:
    return {"HALF": half, "BLOCK": triton.next_power_of_2(half)}


_TURN = {"cos": "*fp32", "sin": "*fp32", "factor": "fp32"}
AHEAD = (
    Ahead(
        "rotations",
        rotations_kernel,
        {"positions": "*i64", "inverse": "*fp32", **_TURN},
        _constants(32),
        warps=1,
    ),
    Ahead(
        "decode_places",
        decode_places_kernel,
        {"positions": "*i64", "lengths": "*i64", "table": "*i32", "inverse": "*fp32"}
        | {"pages": "*i64", "offsets": "*i64", "narrow": "*i32", **_TURN, "table_row": "i32"},
        {"PAGE": 16, **_constants(32)},
        warps=1,
    ),
)
