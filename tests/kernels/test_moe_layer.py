"""A MoE layer around its routed experts on the GPU (or the interpreter), against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from engine.formats.weight import Projections
from engine.kernels.dequantise import dequantise
from engine.kernels.gpu.moe_combine import add_moe_norm
from engine.kernels.gpu.moe_entry import moe_entry
from engine.kernels.moe_layer import MoeEntry, MoeSum, SharedExpert
from tests.kernels.stored import error, stored

HIDDEN, INNER, EXPERTS, ROUTES = 160, 32, 6, 3
ROUNDED = 2**-7
"""Of bfloat16; the interpreter cuts bits off where a GPU rounds."""
FULL = pytest.mark.full
FORMATS = ["bfloat16", "nvfp4", *(pytest.param(f, marks=FULL) for f in ("fp8_block", "mxfp4"))]


def shared_expert(storage: str, *, gated: bool = True) -> SharedExpert:
    shapes = (INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER)
    weights = tuple(stored(storage, *shape) for shape in shapes)
    gate = stored("bfloat16", 1, HIDDEN) if gated else None
    return SharedExpert(Projections(weights, (None,) * 3), gate)


def exact(expert: SharedExpert, x: Tensor) -> Tensor:
    gate, up, down = (dequantise(w, torch.float32).double() for w in expert.gate_up_down.weights)
    return (functional.silu(x.double() @ gate.T) * (x.double() @ up.T)) @ down.T


def entry(x: Tensor, router: Tensor, expert: SharedExpert | None, singles: int) -> MoeEntry:
    return moe_entry(x, router, ROUTES, True, expert, singles)


def equal(one: MoeEntry, other: MoeEntry) -> bool:
    pairs = [(one.ids, other.ids), (one.weights, other.weights)]
    for mine, theirs in ((one.shared, other.shared), (one.gate, other.gate)):
        assert (mine is None) == (theirs is None)
        if mine is not None and theirs is not None:
            pairs.append((mine, theirs))
    return all(torch.equal(*pair) for pair in pairs)


def rows_of(whole: MoeEntry, rows: slice) -> MoeEntry:
    shared = None if whole.shared is None else whole.shared[rows]
    gate = None if whole.gate is None else whole.gate[rows]
    return MoeEntry(whole.ids[rows], whole.weights[rows], shared, gate)


@pytest.mark.parametrize("storage", FORMATS)
def test_single_tokens_are_routed_and_meet_the_shared_expert(storage: str) -> None:
    torch.manual_seed(5)
    x = (0.1 * torch.randn(3, HIDDEN)).to(torch.bfloat16)
    router = torch.randn(EXPERTS, HIDDEN)
    expert = shared_expert(storage)
    got = entry(x, router, expert, 3)
    weights, ids = (x.double() @ router.double().T).softmax(-1).topk(ROUTES)
    assert torch.equal(got.ids, ids)
    assert error(got.weights, weights / weights.sum(-1, keepdim=True)) < 1e-5
    assert got.shared is not None and got.gate is not None and expert.gate is not None
    assert got.shared.dtype == got.gate.dtype == x.dtype
    assert error(got.shared, exact(expert, x)) < ROUNDED
    assert error(got.gate, x.double() @ expert.gate.parts["weight"].double().T) < ROUNDED
    assert equal(entry(x[1:2], router, expert, 1), rows_of(got, slice(1, 2)))


def test_a_layer_need_not_have_a_shared_expert_nor_its_gate() -> None:
    torch.manual_seed(6)
    x = torch.randn(2, HIDDEN).to(torch.bfloat16)
    router = torch.randn(EXPERTS, HIDDEN)
    ungated = entry(x, router, shared_expert("bfloat16", gated=False), 2)
    alone = entry(x, router, None, 2)
    assert alone.shared is alone.gate is ungated.gate is None
    assert ungated.shared is not None
    assert torch.equal(alone.ids, ungated.ids) and torch.equal(alone.weights, ungated.weights)


def test_rows_of_chunks_do_not_change_those_of_single_tokens() -> None:
    torch.manual_seed(7)
    x = torch.randn(4, HIDDEN).to(torch.bfloat16)
    router, expert = torch.randn(EXPERTS, HIDDEN), shared_expert("bfloat16")
    both = entry(x, router, expert, 2)
    assert equal(rows_of(both, slice(0, 2)), entry(x[:2], router, expert, 2))
    assert both.shared is not None
    assert error(both.shared, exact(expert, x)) < 2 * ROUNDED


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("shared", "gated"), [(True, True), (True, False), (False, False)])
def test_routes_shared_expert_and_residual_are_one_sum(
    dtype: torch.dtype, shared: bool, gated: bool
) -> None:
    torch.manual_seed(8)
    x = torch.randn(3, HIDDEN).to(dtype)
    rows, weights = torch.randn(3, ROUTES, HIDDEN), torch.rand(3, ROUTES)
    beside = torch.randn(3, HIDDEN).to(dtype) if shared else None
    gate = torch.randn(3, 1).to(dtype) if gated else None
    added = MoeSum(rows, weights, beside, gate)
    factor = torch.rand(HIDDEN)
    total, out = add_moe_norm(x, added, factor, 1e-3)
    wanted = x.double() + (rows.double() * weights.double().unsqueeze(-1)).sum(1)
    if beside is not None:
        share = 1.0 if gate is None else gate.double().sigmoid()
        wanted += beside.double() * share
    assert total.dtype == out.dtype == dtype
    assert error(total, wanted) < (1e-6 if dtype == torch.float32 else ROUNDED)
    wide = total.double()
    normed = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-3).sqrt() * factor.double()
    assert error(out, normed) < (1e-6 if dtype == torch.float32 else ROUNDED)
    alone = add_moe_norm(x[1:2], added.take(slice(1, 2)), factor, 1e-3)
    assert torch.equal(alone[0], total[1:2]) and torch.equal(alone[1], out[1:2])


def test_no_rows_have_no_sum() -> None:
    nothing = torch.empty(0, HIDDEN)
    added = MoeSum(torch.empty(0, ROUTES, HIDDEN), torch.empty(0, ROUTES), None, None)
    total, out = add_moe_norm(nothing, added, torch.ones(HIDDEN), 1e-6)
    assert total.shape == out.shape == (0, HIDDEN)
