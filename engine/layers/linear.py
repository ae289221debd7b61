"""Linear maps, embeddings and norms: a stored weight and the operation that reads it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.formats.weight import StoredWeight
from engine.kernels.linear import embedding, linear
from engine.kernels.pointwise import rms_norm, swiglu


@dataclass(frozen=True)
class Linear:
    weight: StoredWeight
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """x [N, in]: [N, out] in x's dtype."""
        return linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class Embedding:
    weight: StoredWeight
    dtype: torch.dtype

    def __call__(self, tokens: Tensor) -> Tensor:
        """tokens int64 [N]: [N, hidden] in `dtype`."""
        return embedding(tokens, self.weight, self.dtype)


@dataclass(frozen=True)
class RmsNorm:
    """`weight` float32 [D] is the factor itself: a checkpoint's w - 1 became w at load."""

    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., D]: the same shape and dtype; the mean square is float32."""
        return rms_norm(x, self.weight, self.eps)


@dataclass(frozen=True)
class Mlp:
    """down(silu(gate(x)) * up(x))"""

    gate: Linear
    up: Linear
    down: Linear

    def __call__(self, x: Tensor) -> Tensor:
        """x [N, hidden]: [N, hidden]."""
        return self.down(swiglu(self.gate(x), self.up(x)))
