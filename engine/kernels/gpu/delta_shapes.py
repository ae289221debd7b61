"""Shapes of a gated delta rule layer, and what its kernels can take."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.kernels.delta_layer import DeltaParameters


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


LEAST_KEY_DIM, LEAST_VALUE_DIM = 32, 16
"""A matrix product sums over 16 numbers at least, and keys are taken in halves."""


def can_take(recurrent: Tensor) -> bool:
    """Whether kernels of this package can take heads of a state pool's key_dim and value_dim."""
    key_dim, value_dim = recurrent.shape[2:]
    large = key_dim >= LEAST_KEY_DIM and value_dim >= LEAST_VALUE_DIM
    return large and all(dim & (dim - 1) == 0 for dim in (key_dim, value_dim))


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
    if not can_take(recurrent):
        raise ValueError(
            f"heads of {key_dim} and {value_dim}: powers of two are needed, "
            f"from {LEAST_KEY_DIM} and {LEAST_VALUE_DIM} on"
        )
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
