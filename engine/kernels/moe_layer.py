"""A MoE layer around its routed experts: what comes before them, and the sum after them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.formats.weight import Projections, StoredWeight
from engine.kernels.linear import linear, mlp
from engine.kernels.moe import moe_combine
from engine.kernels.pointwise import add_gated, add_rms_norm, route
from engine.kernels.registry import operation


@dataclass(frozen=True, eq=False)
class SharedExpert:
    """The expert that every token takes."""

    gate_up_down: Projections
    """Without biases."""
    gate: StoredWeight | None
    """[1, hidden]: the sigmoid of its product with a token scales the token's output."""


@dataclass(frozen=True)
class MoeEntry:
    """Where each of T tokens goes, and what the shared expert gives it."""

    ids: Tensor
    """int64 [T, k]"""
    weights: Tensor
    """float32 [T, k]"""
    shared: Tensor | None
    """[T, hidden] in the tokens' dtype; None without a shared expert."""
    gate: Tensor | None
    """[T, 1] in the tokens' dtype: before its sigmoid."""


@dataclass(frozen=True)
class MoeSum:
    """A MoE layer's output, not added up yet: whoever adds it to the residual does that too."""

    rows: Tensor
    """float32 [T, k, hidden]: of each route."""
    weights: Tensor
    """float32 [T, k]"""
    shared: Tensor | None
    gate: Tensor | None
    """As in MoeEntry."""

    def take(self, rows: Tensor | slice) -> MoeSum:
        """Of these tokens alone."""
        shared = None if self.shared is None else self.shared[rows]
        gate = None if self.gate is None else self.gate[rows]
        return MoeSum(self.rows[rows], self.weights[rows], shared, gate)


@operation("moe_entry", cuda="engine.kernels.gpu.moe_entry")
def moe_entry(
    x: Tensor,
    router: Tensor,
    top_k: int,
    normalise: bool,
    shared: SharedExpert | None,
    singles: int = 0,
) -> MoeEntry:
    """Route x [T, hidden] with router float32 [experts, hidden] (`route`), and compute the shared
    expert. The first `singles` rows are sequences of one token, as in `linear`."""
    ids, weights = route(x, router, top_k, normalise)
    if shared is None:
        return MoeEntry(ids, weights, None, None)
    gate = None if shared.gate is None else linear(x, shared.gate, None, singles)
    return MoeEntry(ids, weights, mlp(x, shared.gate_up_down, singles), gate)


@operation("add_moe_norm", cuda="engine.kernels.gpu.moe_combine")
def add_moe_norm(x: Tensor, added: MoeSum, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x [T, hidden] + (routed experts + sigmoid(gate) * shared expert), and rms_norm of it: both in
    x's dtype. A token's routes are added in their order, in float32 (`moe_combine`); a GPU rounds
    the whole sum once. Writes to the shared expert's output."""
    total = moe_combine(added.rows, added.weights, x.dtype)
    if added.shared is not None:
        total = add_gated(total, added.shared, added.gate)
    return add_rms_norm(x, total, weight, eps)
