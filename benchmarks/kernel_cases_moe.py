"""What surrounds the routed experts of a MoE layer, at the shapes of Qwen3.6-35B-A3B."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.kernel_cases_weights import EXPERTS, HIDDEN, INNER, ROUTES, Case, error, stored
from engine.formats.weight import Projections
from engine.kernels.gpu.moe_combine import add_moe_norm
from engine.kernels.gpu.moe_entry import moe_entry
from engine.kernels.moe_layer import MoeSum, SharedExpert
from engine.kernels.moe_layer import moe_entry as operation
from engine.kernels.pointwise import rms_norm

EPS = 1e-6


def _entry(storage: str, tokens: int) -> Case:
    shapes = (INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER)
    weights = tuple(stored(storage, *shape) for shape in shapes)
    shared = SharedExpert(Projections(weights, (None,) * 3), stored("bfloat16", 1, HIDDEN))
    x = 0.02 * torch.randn(tokens, HIDDEN, device="cuda")
    x = x.to(torch.bfloat16)
    router = torch.randn(EXPERTS, HIDDEN, device="cuda")

    def check() -> float:
        got = moe_entry(x, router, ROUTES, True, shared, tokens)
        wanted = operation.reference(x, router, ROUTES, True, shared, tokens)
        assert got.shared is not None and wanted.shared is not None
        if not torch.equal(got.ids, wanted.ids):
            return float("nan")
        return max(error(got.weights, wanted.weights), error(got.shared, wanted.shared))

    return Case(
        f"moe entry {storage} M={tokens}",
        lambda: moe_entry(x, router, ROUTES, True, shared, tokens),
        check,
        router.nbytes + sum(weight.nbytes for weight in weights),
    )


def _sum(tokens: int) -> Case:
    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda")

    x, shared = (normal(tokens, HIDDEN).to(torch.bfloat16) for _ in range(2))
    gate, factor = normal(tokens, 1).to(torch.bfloat16), normal(HIDDEN)
    added = MoeSum(normal(tokens, ROUTES, HIDDEN), normal(tokens, ROUTES), shared, gate)

    def check() -> float:
        routes = (added.rows * added.weights.unsqueeze(-1)).sum(1)
        total = x.float() + routes + shared.float() * gate.float().sigmoid()
        got = add_moe_norm(x, added, factor, EPS)
        return max(error(got[0], total), error(got[1], rms_norm.reference(total, factor, EPS)))

    return Case(
        f"sum and norm, {tokens} x {HIDDEN}",
        lambda: add_moe_norm(x, added, factor, EPS),
        check,
        added.rows.nbytes + 4.0 * x.nbytes,
    )


def cases() -> Iterator[Case]:
    for tokens in (1, 8):
        for storage in ("nvfp4", "bfloat16"):
            yield _entry(storage, tokens)
        yield _sum(tokens)
    yield _sum(8192)
