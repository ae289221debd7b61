"""Mixture of experts: router, shared expert, and whoever computes the routed experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.kernels.pointwise import route
from engine.layers.linear import Linear, Mlp


class ExpertsForward(Protocol):
    """The routed experts of all layers, wherever their weights are."""

    def __call__(self, layer: int, x: Tensor, ids: Tensor, weights: Tensor, singles: int) -> Tensor:
        """x [T, hidden], ids int64 [T, k], weights float32 [T, k]: the weighted sum [T, hidden],
        which is the caller's to write to. The first `singles` rows are sequences of one token."""
        ...


@dataclass(frozen=True)
class Moe:
    layer: int
    top_k: int
    normalise_top_k: bool
    router: Tensor
    """float32 [experts, hidden]"""
    experts: ExpertsForward
    shared: Mlp | None = None
    shared_gate: Linear | None = None
    """[1, hidden]: its sigmoid scales the shared expert's output."""

    def __call__(self, x: Tensor, singles: int) -> Tensor:
        """x [T, hidden] of all sequences of the step, those of one token first: [T, hidden] in x's
        dtype."""
        ids, weights = route(x, self.router, self.top_k, self.normalise_top_k)
        out = self.experts(self.layer, x, ids, weights, singles)
        if self.shared is None:
            return out
        # In place: both are this call's own, and new memory costs as much as the arithmetic.
        shared = self.shared(x, singles)
        if self.shared_gate is not None:
            shared.mul_(torch.sigmoid(self.shared_gate(x, singles).to(torch.float32)))
        return out.add_(shared)
