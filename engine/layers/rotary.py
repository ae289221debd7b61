"""Cosines and sines of the rotary embedding, with the scalings that stretch its context."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.kernels.places import rotations
from engine.models.spec import RopeSpec


def inverse_frequencies(rope: RopeSpec) -> Tensor:
    """float32 [dim / 2]: radians per position of each pair of dimensions."""
    powers = torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim
    plain = 1.0 / (rope.theta**powers)
    if rope.kind == "default":
        return plain
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "llama3":
        return _llama3(rope, plain)
    return _yarn(rope, plain)


def _llama3(rope: RopeSpec, plain: Tensor) -> Tensor:
    """Long wavelengths are stretched by the factor, short ones kept, those between blended."""
    turns = rope.original_positions * plain / (2 * math.pi)
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return (1 - blend) * plain / rope.factor + blend * plain


def _yarn(rope: RopeSpec, plain: Tensor) -> Tensor:
    """Dimensions that turn often keep their frequency, those that turn rarely are interpolated."""

    def dimension(turns: float) -> float:
        """Where in the head a pair turns that often over the original context."""
        wavelength = rope.original_positions / (turns * 2 * math.pi)
        return rope.dim * math.log(wavelength) / (2 * math.log(rope.theta))

    low = max(math.floor(dimension(rope.beta_fast)), 0)
    high = min(math.ceil(dimension(rope.beta_slow)), rope.dim - 1)
    # The published code widens an empty ramp by a thousandth; so does everyone since.
    width = high - low if high != low else 0.001
    ramp = ((torch.arange(rope.dim // 2, dtype=torch.float32) - low) / width).clamp(0.0, 1.0)
    return plain / rope.factor * ramp + plain * (1 - ramp)


class Rotary:
    """cos and sin of a batch's positions, computed once a step for all layers."""

    def __init__(self, rope: RopeSpec, device: torch.device) -> None:
        self.factor = rope.attention_factor
        self.inverse = inverse_frequencies(rope).to(device)

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """float32 [N, dim / 2] each, of int64 positions [N]."""
        return rotations(positions, self.inverse, self.factor)
