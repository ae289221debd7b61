"""The reference kernel against float64, and the promises about bits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.experts.store import ExpertStore, plan_layers
from engine.formats import nvfp4
from engine.kernels import moe
from engine.kernels.moe import decoded_blocks, moe_combine, moe_expert_rows, moe_experts, part_view
from tests.experts.checkpoint_experts import FORMATS, GROUPS, RandomExperts, plain, random_experts
from tests.native.tiles import has_tiles_now


def stored(experts: RandomExperts) -> ExpertStore:
    return ExpertStore.load(experts, plan_layers(experts, range(len(experts.layers))))


def in_float64(experts: RandomExperts, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    out = torch.zeros(x.shape, dtype=torch.float64)
    matrices = [[plain(weight) for weight in expert] for expert in experts.layers[0]]
    for token in range(x.shape[0]):
        row = x[token].to(torch.float64)
        for route in range(ids.shape[1]):
            gate, up, down = matrices[int(ids[token, route])]
            g = gate @ row
            out[token] += weights[token, route].double() * (
                down @ (g / (1 + torch.exp(-g)) * (up @ row))
            )
    return out


def routing(tokens: int, experts: int, width: int) -> tuple[Tensor, Tensor]:
    ids = torch.rand(tokens, experts).argsort(1)[:, :width]
    return ids, torch.softmax(torch.randn(tokens, width), 1)


@pytest.mark.parametrize("storage", FORMATS)
@pytest.mark.parametrize(("hidden", "inner"), [(64, 96), (160, 224)])
@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_matches_float64(storage: str, hidden: int, inner: int, tokens: int) -> None:
    experts = random_experts(storage, experts=4, hidden=hidden, inner=inner)
    store = stored(experts)
    x = torch.randn(tokens, hidden)
    ids, weights = routing(tokens, 4, 2)
    out = moe_experts(store.bank(0), store.plan(0).spec, x, ids, weights)
    expected = in_float64(experts, x, ids, weights)
    scale = float(expected.abs().max())
    assert float((out.double() - expected).abs().max()) < 2e-6 * scale


def test_bfloat16_activations_are_rounded_only_at_the_end() -> None:
    experts = random_experts("bfloat16", experts=3, hidden=64, inner=32)
    store = stored(experts)
    x = torch.randn(6, 64).to(torch.bfloat16)
    ids, weights = routing(6, 3, 2)
    out = moe_experts(store.bank(0), store.plan(0).spec, x, ids, weights)
    exact = moe_experts(store.bank(0), store.plan(0).spec, x.float(), ids, weights)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, exact.to(torch.bfloat16))


SHAPES = [(storage, *shape) for storage in FORMATS for shape in [(64, 96), (160, 224), (256, 2112)]]
# Without groups of columns, sizes can be such that nothing aligns.
ODD = [(storage, 33, 7) for storage in FORMATS if storage not in GROUPS]


@pytest.mark.parametrize(("storage", "hidden", "inner"), SHAPES + ODD)
def test_a_row_depends_on_neither_neighbours_nor_slots(
    storage: str, hidden: int, inner: int
) -> None:
    experts = random_experts(storage, experts=5, hidden=hidden, inner=inner)
    store = stored(experts)
    bank, spec = store.bank(0), store.plan(0).spec
    x = torch.randn(37, hidden)
    ids, weights = routing(37, 5, 3)
    together = moe_experts(bank, spec, x, ids, weights)
    # With more tokens an expert may be computed as for a prompt, in an order of its own.
    few = moe_experts(bank, spec, x[:16], ids[:16], weights[:16])
    for token in range(0, 16, 3):
        one = slice(token, token + 1)
        alone = moe_experts(bank, spec, x[one], ids[one], weights[one])
        assert torch.equal(alone[0], few[token])
        if not has_tiles_now(storage, x.dtype):
            assert torch.equal(alone[0], together[token])
    order = torch.randperm(37)
    shuffled = moe_experts(bank, spec, x[order], ids[order], weights[order])
    assert torch.equal(shuffled, together[order])
    place = torch.randperm(9)[:5]
    scattered = torch.full((9, spec.stride), 255, dtype=torch.uint8)
    scattered[place] = bank
    assert torch.equal(moe_experts(scattered, spec, x, place[ids], weights), together)


def test_threads_do_not_change_a_row() -> None:
    experts = random_experts("bfloat16", experts=3, hidden=128, inner=2112)
    store = stored(experts)
    bank, spec = store.bank(0), store.plan(0).spec
    tokens = 16 if has_tiles_now("bfloat16", torch.float32) else 50
    x = torch.randn(tokens, 128)
    ids, weights = routing(tokens, 3, 2)
    torch.set_num_threads(2)
    try:
        together = moe_experts(bank, spec, x, ids, weights)
        alone = moe_experts(bank, spec, x[7:8], ids[7:8], weights[7:8])
    finally:
        torch.set_num_threads(1)
    assert torch.equal(alone[0], together[7])


@pytest.mark.parametrize("storage", FORMATS)
def test_groups_of_experts_make_the_same_rows(storage: str) -> None:
    experts = random_experts(storage, experts=6, hidden=64, inner=32)
    store = stored(experts)
    bank, spec = store.bank(0), store.plan(0).spec
    x = torch.randn(20, 64)
    ids, weights = routing(20, 6, 3)
    whole = moe_experts(bank, spec, x, ids, weights)
    rows = torch.full((20, 3, 64), float("nan"))
    for group in ([4], [0, 5, 2], [1, 3]):
        only = torch.where(torch.isin(ids, torch.tensor(group)), ids, -1)
        moe_expert_rows(bank, spec, x, only, rows)
    assert torch.equal(moe_combine(rows, weights, x.dtype), whole)


@pytest.mark.parametrize("storage", FORMATS)
def test_blocks_make_up_the_matrices(storage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    experts = random_experts(storage, experts=2, hidden=288, inner=160)
    store = stored(experts)
    gate, up, down = (plain(weight) for weight in experts.layers[0][1])
    for weights in (1, 288 * 50, 288 * 130, 1 << 18):
        monkeypatch.setattr(moe, "CACHE_BLOCK_WEIGHTS", weights)
        for name, expected in (("gate_up", torch.cat([gate, up])), ("down", down)):
            end = 0
            bank, spec = store.bank(0), store.plan(0).spec
            for place, start, rows in decoded_blocks(bank, spec, name, [1]):
                assert (place, start) == (0, end)
                end += rows.shape[0]
                assert torch.allclose(rows.double(), expected[start:end], rtol=1.2e-7, atol=0)
            assert end == expected.shape[0]


def test_gate_and_up_keep_globals_of_their_own() -> None:
    experts = random_experts("nvfp4", experts=2, hidden=32, inner=16)
    gate, up, down = experts.layers[0][1]
    assert gate.parts["scale_2"] != up.parts["scale_2"]
    store = stored(experts)
    ((_, _, both),) = decoded_blocks(store.bank(0), store.plan(0).spec, "gate_up", [1])
    ((_, _, last),) = decoded_blocks(store.bank(0), store.plan(0).spec, "down", [1])
    expected = [
        nvfp4.dequantise(w.parts["weight"], w.parts["scale"], w.parts["scale_2"])
        for w in (gate, up, down)
    ]
    assert torch.equal(both, torch.cat(expected[:2]))
    assert torch.equal(last, expected[2])


def test_parts_are_views_of_the_bank() -> None:
    experts = random_experts("fp8_block", experts=2, hidden=32, inner=16)
    store = stored(experts)
    view = part_view(store.bank(0), store.plan(0).spec, "down.scale")
    assert (
        view.data_ptr() == store.bank(0).data_ptr() + store.plan(0).spec.part("down.scale").offset
    )
    assert torch.equal(view[1, 0], experts.layers[0][1][2].parts["scale"])


def test_empty_and_wrong_inputs() -> None:
    experts = random_experts("float32", experts=2, hidden=32, inner=16)
    store = stored(experts)
    bank, spec = store.bank(0), store.plan(0).spec
    none = torch.empty((0, 2), dtype=torch.int64)
    assert moe_experts(bank, spec, torch.empty(0, 32), none, torch.empty(0, 2)).shape == (0, 32)
    for wrong in (2, -1):
        with pytest.raises(ValueError, match=f"slot {wrong}"):
            moe_experts(bank, spec, torch.zeros(1, 32), torch.tensor([[wrong]]), torch.ones(1, 1))
