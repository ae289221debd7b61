"""A layer step from blobs, by format and instruction set, against float64 and against itself."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.errors import UnsupportedModel
from engine.experts.store import ExpertStore, plan_layers
from engine.formats.blob import BlobSpec
from engine.formats.weight import StoredWeight
from engine.kernels.moe import moe_combine, moe_expert_rows, moe_experts
from engine.kernels.native import expert_rows
from engine.native.library import ACTIVATIONS, Library
from tests.experts.checkpoint_experts import (
    FORMATS,
    GROUPS,
    RandomExperts,
    random_experts,
)
from tests.native.tiles import has_tiles
from tests.properties import examples

pytestmark = pytest.mark.usefixtures("tier")


def stored(experts: RandomExperts) -> tuple[Tensor, BlobSpec]:
    store = ExpertStore.load(experts, plan_layers(experts, [0]))
    return store.bank(0), store.plan(0).spec


def join(name: str, gate: Tensor, up: Tensor) -> Tensor:
    """The activations by their published definitions, in float64."""
    if name == "silu_glu":
        return gate * torch.sigmoid(gate) * up
    if name == "gelu_tanh_glu":
        inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
        return 0.5 * gate * (1 + torch.tanh(inner)) * up
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return (up + 1) * gate * torch.sigmoid(1.702 * gate)


def rows_in_float64(
    experts: RandomExperts, x: Tensor, ids: Tensor, activation: str = "silu_glu"
) -> Tensor:
    rows = torch.zeros((*ids.shape, x.shape[1]), dtype=torch.float64)
    for expert, matrices in enumerate(zip(experts.layers[0], experts.plain[0], strict=True)):
        gate, up, down = zip(*matrices, strict=True)
        token, route = torch.where(ids == expert)
        wide = x[token].double()
        inner = join(activation, product(wide, *gate), product(wide, *up))
        rows[token, route] = product(inner, *down)
    return rows


def product(x: Tensor, weight: StoredWeight, plain: Tensor) -> Tensor:
    out = x @ plain.T
    return out + weight.parts["bias"].double() if "bias" in weight.parts else out


def with_biases(experts: RandomExperts, dtype: torch.dtype) -> RandomExperts:
    def biased(weight: StoredWeight) -> StoredWeight:
        bias = (torch.randn(weight.shape[0]) * 2).to(dtype)
        return StoredWeight(weight.format, weight.shape, weight.parts | {"bias": bias})

    return RandomExperts(
        [[(biased(a), biased(b), biased(c)) for a, b, c in layer] for layer in experts.layers]
    )


def relative(got: Tensor, expected: Tensor) -> float:
    size = float(expected.norm())
    difference = float((got.double() - expected).norm())
    return difference / size if size else difference


SIZES = [(64, 48), (576, 32), (160, 144), (32, 1040)]
ODD = [(33, 7), (130, 129)]


@pytest.mark.parametrize("storage", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("hidden", "inner"), SIZES + ODD)
def test_rows_match_float64(storage: str, dtype: torch.dtype, hidden: int, inner: int) -> None:
    group = GROUPS.get(storage, 1)
    hidden, inner = -(-hidden // group) * group, -(-inner // group) * group
    experts = random_experts(storage, experts=5, hidden=hidden, inner=inner)
    bank, spec = stored(experts)
    for tokens in (1, 5, 18, 66):
        x = torch.randn(tokens, hidden).to(dtype)
        ids = torch.rand(tokens, 5).argsort(1)[:, :3]
        rows = torch.empty(tokens, 3, hidden)
        moe_expert_rows(bank, spec, x, ids, rows)
        assert relative(rows, rows_in_float64(experts, x, ids)) < 2e-6


@pytest.mark.parametrize("storage", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("hidden", "inner"), [(160, 96), (33, 7), (130, 129), (1, 1)])
def test_biases_match_float64(storage: str, dtype: torch.dtype, hidden: int, inner: int) -> None:
    group = GROUPS.get(storage, 1)
    hidden, inner = -(-hidden // group) * group, -(-inner // group) * group
    plain_experts = random_experts(storage, experts=4, hidden=hidden, inner=inner)
    experts = with_biases(plain_experts, dtype)
    bank, spec = stored(experts)
    for tokens in (1, 5, 66):
        x = torch.randn(tokens, hidden)
        ids = torch.rand(tokens, 4).argsort(1)[:, :3]
        ids[tokens // 2, 1] = -1
        for activation in ACTIVATIONS:
            rows = torch.zeros(tokens, 3, hidden)
            expert_rows(bank, spec, x, ids, rows, activation)
            expected = rows_in_float64(experts, x, ids, activation)
            assert relative(rows, expected) < 3e-6
            # They matter: the check would see one that was left out.
            assert relative(rows, rows_in_float64(plain_experts, x, ids, activation)) > 0.05
        rows = torch.zeros(tokens, 3, hidden)
        moe_expert_rows.reference(bank, spec, x, ids, rows)
        assert relative(rows, rows_in_float64(experts, x, ids)) < 3e-6


def test_biases_of_different_kinds_are_refused() -> None:
    experts = random_experts("float32", experts=2, hidden=32, inner=16)
    (gate, up, down), second = with_biases(experts, torch.float32).layers[0]
    bare = StoredWeight(up.format, up.shape, {"weight": up.parts["weight"]})
    with pytest.raises(UnsupportedModel, match="biases of different kinds"):
        stored(RandomExperts([[(gate, bare, down), second]]))
    with pytest.raises(UnsupportedModel, match="no biases.* float32 biases"):
        stored(RandomExperts([[second, experts.layers[0][1]]]))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_match_their_definitions(activation: str) -> None:
    experts = random_experts("float32", experts=2, hidden=64, inner=80)
    bank, spec = stored(experts)
    # Sums from nearly nothing to far beyond what exp can hold.
    x = torch.randn(6, 64) * torch.tensor([1e-4, 0.1, 1.0, 5.0, 30.0, 300.0]).unsqueeze(1)
    ids = torch.tensor([[0], [1], [0], [1], [0], [1]])
    rows = torch.empty(6, 1, 64)
    expert_rows(bank, spec, x, ids, rows, activation)
    expected = rows_in_float64(experts, x, ids, activation)
    for token in range(6):
        assert relative(rows[token], expected[token]) < 3e-6


@pytest.mark.parametrize("pair", [("bfloat16", "nvfp4"), ("nvfp4", "fp8_block")])
def test_down_may_have_a_format_of_its_own(pair: tuple[str, str]) -> None:
    first = random_experts(pair[0], experts=3, hidden=96, inner=64)
    second = random_experts(pair[1], experts=3, hidden=96, inner=64)
    mixed = RandomExperts(
        [[(a[0], a[1], b[2]) for a, b in zip(first.layers[0], second.layers[0], strict=True)]]
    )
    bank, spec = stored(mixed)
    x, ids = torch.randn(4, 96), torch.tensor([[0, 1], [2, 0], [1, 2], [0, 2]])
    rows = torch.empty(4, 2, 96)
    moe_expert_rows(bank, spec, x, ids, rows)
    assert relative(rows, rows_in_float64(mixed, x, ids)) < 2e-6


@pytest.mark.parametrize("storage", FORMATS)
def test_routes_without_a_slot_keep_their_rows_and_experts_may_repeat(storage: str) -> None:
    experts = random_experts(storage, experts=4, hidden=64, inner=32)
    bank, spec = stored(experts)
    x = torch.randn(5, 64)
    ids = torch.tensor([[1, 1, -1], [-1, -1, -1], [3, -7, 3], [1, 2, 0], [-1, 1, 1]])
    rows = torch.full((5, 3, 64), 7.0)
    moe_expert_rows(bank, spec, x, ids, rows)
    assert bool((rows[ids < 0] == 7.0).all())
    assert torch.equal(rows[0, 0], rows[0, 1])
    assert relative(rows[ids >= 0], rows_in_float64(experts, x, ids)[ids >= 0]) < 2e-6
    nothing = torch.full((5, 3), -1)
    moe_expert_rows(bank, spec, x, nothing, rows.clone())


@pytest.mark.parametrize("storage", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_depends_on_neither_company_nor_threads_nor_slot(
    storage: str, dtype: torch.dtype, native: Library, tier: str
) -> None:
    """Tiles add in an order of their own: there prompts are equal among themselves."""
    experts = random_experts(storage, experts=5, hidden=576, inner=160)
    bank, spec = stored(experts)
    x = torch.randn(90, 576).to(dtype)
    ids = torch.rand(90, 5).argsort(1)[:, :3]
    together = torch.empty(90, 3, 576)
    moe_expert_rows(bank, spec, x, ids, together)
    for token in range(0, 90, 7):
        one = slice(token, token + 1)
        alone = torch.empty(1, 3, 576)
        moe_expert_rows(bank, spec, x[one], ids[one], alone)
        assert has_tiles(tier, storage, dtype) or torch.equal(alone[0], together[token])
    fewer = torch.empty(60, 3, 576)
    moe_expert_rows(bank, spec, x[:60], ids[:60], fewer)
    assert torch.equal(fewer, together[:60])
    torch.set_num_threads(2)
    again = torch.empty_like(together)
    moe_expert_rows(bank, spec, x, ids, again)
    assert torch.equal(again, together)
    place = torch.tensor([7, 2, 8, 0, 5])
    scattered = torch.full((9, spec.stride), 255, dtype=torch.uint8)
    scattered[place] = bank
    moe_expert_rows(scattered, spec, x, place[ids], again)
    assert torch.equal(again, together)


def test_the_sum_of_routes_is_the_reference_s_to_the_bit() -> None:
    rows, weights = torch.randn(7, 5, 333), torch.rand(7, 5)
    for dtype in (torch.float32, torch.bfloat16):
        expected = moe_combine.reference(rows, weights, dtype)
        assert torch.equal(moe_combine(rows, weights, dtype), expected)


def test_what_is_no_number_stays_with_its_token() -> None:
    experts = random_experts("nvfp4", experts=3, hidden=64, inner=32)
    bank, spec = stored(experts)
    x, ids = torch.randn(9, 64), torch.randint(3, (9, 2))
    clean = moe_experts(bank, spec, x, ids, torch.ones(9, 2))
    x[4, 5] = math.nan
    got = moe_experts(bank, spec, x, ids, torch.ones(9, 2))
    others = torch.arange(9) != 4
    assert torch.equal(got[others], clean[others])
    assert bool(got[4].isnan().all())


@pytest.mark.parametrize("storage", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [3, 20])
def test_nan_and_infinities_go_through_a_step_as_through_its_definition(
    storage: str, dtype: torch.dtype, tokens: int
) -> None:
    experts = random_experts(storage, experts=1, hidden=160, inner=96)
    bank, spec = stored(experts)
    x, ids = torch.randn(tokens, 160).to(dtype), torch.zeros((tokens, 1), dtype=torch.int64)
    for activation in ACTIVATIONS:
        clean, rows = torch.zeros(tokens, 1, 160), torch.zeros(tokens, 1, 160)
        expert_rows(bank, spec, x, ids, clean, activation)
        for bad in (math.nan, math.inf, -math.inf):
            dirty = x.clone()
            dirty[-1, 77] = bad
            expert_rows(bank, spec, dirty, ids, rows, activation)
            assert torch.equal(rows[:-1], clean[:-1])
            expected = rows_in_float64(experts, dirty[-1:], ids[-1:], activation)
            assert torch.equal(rows[-1:].isfinite(), expected.isfinite())


def test_wrong_inputs_are_refused() -> None:
    bank, spec = stored(random_experts("float32", experts=2, hidden=32, inner=16))
    x, ids = torch.zeros(1, 32), torch.zeros((1, 1), dtype=torch.int64)
    with pytest.raises(ValueError, match="slot 2 is not in the bank of 2"):
        moe_expert_rows(bank, spec, x, ids + 2, torch.zeros(1, 1, 32))
    for rows in (torch.zeros(1, 1, 31), torch.zeros(1, 2, 32), torch.zeros(1, 1, 64)[:, :, ::2]):
        with pytest.raises(ValueError, match="rows must be"):
            moe_expert_rows(bank, spec, x, ids, rows)
    with pytest.raises(ValueError, match="x is"):
        moe_expert_rows(bank, spec, torch.zeros(2, 32), ids, torch.zeros(1, 1, 32))
    with pytest.raises(ValueError, match="the bank"):
        moe_expert_rows(bank[:, 16:], spec, x, ids, torch.zeros(1, 1, 32))


@settings(
    max_examples=examples(40),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data(), storage=st.sampled_from(sorted(FORMATS)), seed=st.integers(0, 2**31))
def test_any_step(data: st.DataObject, storage: str, seed: int) -> None:
    group = GROUPS.get(storage, 1)
    hidden = data.draw(st.integers(2, 300 // group)) * group
    inner = data.draw(st.integers(2, 300 // group)) * group
    count = data.draw(st.integers(1, 6))
    tokens, width = data.draw(st.integers(0, 30)), data.draw(st.integers(1, 4))
    torch.set_num_threads(data.draw(st.integers(1, 3)))
    experts = random_experts(storage, experts=count, hidden=hidden, inner=inner, seed=seed)
    bank, spec = stored(experts)
    x = torch.randn(tokens, hidden)
    x = x.to(data.draw(st.sampled_from([torch.float32, torch.bfloat16])))
    activation = data.draw(st.sampled_from(sorted(ACTIVATIONS)))
    ids = torch.randint(-1, count, (tokens, width))
    rows = torch.zeros(tokens, width, hidden)
    expert_rows(bank, spec, x, ids, rows, activation)
    assert relative(rows, rows_in_float64(experts, x, ids, activation)) < 1e-5
