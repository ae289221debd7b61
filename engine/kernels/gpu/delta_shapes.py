"""Shapes of a gated delta rule layer, and what its kernels can take."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class DeltaParameters:
    """A layer's own numbers, all float32."""

    conv_weight: Tensor
    """[channels, taps]"""
    a_log: Tensor
    """[value_heads]"""
    dt_bias: Tensor
    """[value_heads]"""
    norm_weight: Tensor
    """[value_dim]"""
    eps: float


@dataclass(frozen=True)
class DeltaShape:
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int

    @property
    def channels(self) -> int:
        """Of the convolution: all heads' queries, all heads' keys, all heads' values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


QWEN3_NEXT = DeltaShape(key_heads=16, value_heads=32, key_dim=128, value_dim=128, taps=4)
"""Qwen3-Next, and Qwen3.5 and 3.6 of 35B-A3B: what kernels are compiled for ahead of time."""


def _power_of_two(number: int) -> bool:
    return number >= 16 and number & (number - 1) == 0


def delta_shape(
    qkv: Tensor,
    z: Tensor,
    b: Tensor,
    a: Tensor,
    parameters: DeltaParameters,
    conv: Tensor,
    recurrent: Tensor,
) -> DeltaShape:
    """Read from the tensors. ValueError where they do not fit each other or the kernels."""
    value_heads, key_dim, value_dim = recurrent.shape[1:]
    channels, taps = parameters.conv_weight.shape
    shape = DeltaShape(
        key_heads=(channels - value_heads * value_dim) // (2 * key_dim),
        value_heads=value_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        taps=taps,
    )
    if not (_power_of_two(key_dim) and _power_of_two(value_dim)):
        raise ValueError(f"heads of {key_dim} and {value_dim}: powers of two from 16 on are needed")
    if shape.channels != channels or shape.key_heads < 1 or value_heads % shape.key_heads:
        raise ValueError(f"{channels} channels are not those of {value_heads} value heads")
    rows = len(qkv)
    wanted = (
        ("qkv", qkv, (rows, channels)),
        ("z", z, (rows, value_heads * value_dim)),
        ("b", b, (rows, value_heads)),
        ("a", a, (rows, value_heads)),
        ("conv", conv, (len(conv), channels, taps - 1)),
        ("recurrent", recurrent, (len(conv), value_heads, key_dim, value_dim)),
    )
    for name, tensor, expected in wanted:
        if tuple(tensor.shape) != expected:
            raise ValueError(f"{name} is {list(tensor.shape)}, not {list(expected)}")
        if not tensor[:1].is_contiguous():
            raise ValueError(f"rows of {name} are not contiguous")
    return shape
