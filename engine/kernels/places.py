"""Where rows of a step stand: their rotation, and the places of their keys and values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels.registry import operation

_CUDA = "engine.kernels.gpu.places"


@dataclass(frozen=True)
class DecodePlaces:
    """Of S rows, each a sequence's next token."""

    pages: Tensor
    """int64 [S]"""
    offsets: Tensor
    """int64 [S], within the pages."""
    lengths: Tensor
    """int32 [S]"""
    cos: Tensor
    """float32 [S, dim / 2]"""
    sin: Tensor


@operation("rotations", cuda=_CUDA)
def rotations(positions: Tensor, inverse: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """cos and sin times `factor`, float32 [N, dim / 2] each, of int64 positions [N] times inverse
    frequencies float32 [dim / 2]."""
    angles = positions.to(torch.float32).unsqueeze(1) * inverse
    return angles.cos() * factor, angles.sin() * factor


@operation("decode_places", cuda=_CUDA)
def decode_places(
    positions: Tensor,
    lengths: Tensor,
    pages: Tensor,
    page_tokens: int,
    inverse: Tensor,
    factor: float,
) -> DecodePlaces:
    """Of int64 positions [S] of sequences with int64 lengths [S] and pages int32 [S, most], whose
    rotation is the one of `rotations`."""
    within = (positions // page_tokens).unsqueeze(1)
    return DecodePlaces(
        pages.gather(1, within).squeeze(1).to(torch.int64),
        positions % page_tokens,
        lengths.to(torch.int32),
        *rotations(positions, inverse, factor),
    )
