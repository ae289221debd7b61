"""Linear maps, embeddings and norms: a stored weight and the operation that reads it.

`singles` rows of x come first that are sequences of one token (engine.kernels.linear).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.formats.weight import Projections, StoredWeight
from engine.kernels.linear import embedding, linear, mlp
from engine.kernels.moe_layer import MoeSum, add_moe_norm
from engine.kernels.pointwise import add_rms_norm, rms_norm


@dataclass(frozen=True)
class Linear:
    weight: StoredWeight
    bias: Tensor | None = None

    def __call__(self, x: Tensor, singles: int) -> Tensor:
        """x [N, in]: [N, out] in x's dtype."""
        return linear(x, self.weight, self.bias, singles)


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

    def after_adding(self, x: Tensor, added: Tensor | MoeSum) -> tuple[Tensor, Tensor]:
        """x + added, and the norm of it."""
        if isinstance(added, MoeSum):
            return add_moe_norm(x, added, self.weight, self.eps)
        return add_rms_norm(x, added, self.weight, self.eps)


def together(*maps: Linear) -> Projections:
    """Linear maps of the same rows, for one call. What is returned has their memory laid anew: the
    maps themselves are not to be kept."""
    return Projections.end_to_end([m.weight for m in maps], [m.bias for m in maps])


@dataclass(frozen=True)
class Mlp:
    """down(silu(gate(x)) * up(x))"""

    gate_up_down: Projections

    def __call__(self, x: Tensor, singles: int) -> Tensor:
        """x [N, hidden]: [N, hidden]."""
        return mlp(x, self.gate_up_down, singles)
