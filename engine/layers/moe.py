"""Mixture of experts: router, shared expert, and whoever computes the routed experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from engine.kernels.moe_layer import MoeSum, SharedExpert, moe_entry


class ExpertsForward(Protocol):
    """The routed experts of all layers, wherever their weights are."""

    def __call__(
        self, layer: int, x: Tensor, ids: Tensor, weights: Tensor | None, singles: int
    ) -> Tensor:
        """x [T, hidden], ids int64 [T, k]: the row of each route, float32 [T, k, hidden]; with
        weights float32 [T, k] their weighed sum [T, hidden] in x's dtype. The first `singles` rows
        are sequences of one token."""
        ...


@dataclass(frozen=True)
class Moe:
    layer: int
    top_k: int
    normalise_top_k: bool
    router: Tensor
    """float32 [experts, hidden]"""
    experts: ExpertsForward
    shared: SharedExpert | None = None

    def __call__(self, x: Tensor, singles: int) -> MoeSum:
        """x [T, hidden] of all sequences of the step, those of one token first."""
        # The shared expert comes before the routed ones: on a GPU, where the router leaves most of
        # it idle.
        entry = moe_entry(x, self.router, self.top_k, self.normalise_top_k, self.shared, singles)
        rows = self.experts(self.layer, x, entry.ids, None, singles)
        return MoeSum(rows, entry.weights, entry.shared, entry.gate)
