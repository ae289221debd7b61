"""Routed experts read from slots, against the torch reference in float32."""

from __future__ import annotations

import pytest
import torch

from engine.formats.blob import blob_spec
from engine.kernels.gpu.moe_combine import combine
from engine.kernels.gpu.moe_decode import moe_decode
from engine.kernels.gpu.moe_prefill import Sorted, prefill_rows
from engine.kernels.moe import moe_combine, moe_expert_rows
from tests.kernels.stored import bank, error

HIDDEN, INNER, SLOTS = 96, 160, 6
FEW_HIDDEN, FEW_INNER = 64, 32
"""Few, since the interpreter is slow."""
KINDS = [("bfloat16", "bfloat16"), ("fp8_block", None), ("nvfp4", "float32"), ("mxfp4", None)]


# What a route without a slot left in memory may be anything: the interpreter's NumPy tells of it.
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize(
    ("storage", "bias", "inner"),
    # float32's rows of 96 are more than one piece of them.
    [("float32", None, 96), *((*kind, FEW_INNER) for kind in KINDS)],
)
def test_few_tokens(storage: str, bias: str | None, inner: int) -> None:
    torch.manual_seed(1)
    spec = blob_spec(storage, FEW_HIDDEN, inner, bias=bias)
    experts = bank(spec, SLOTS)
    x = torch.randn(2, FEW_HIDDEN)
    slots = torch.tensor([[0, 2, 5], [1, -1, 2]], dtype=torch.int32)
    weights = torch.rand(2, 3)
    got = moe_decode(experts, spec, x, slots, weights)
    rows = torch.zeros(2, 3, FEW_HIDDEN)
    moe_expert_rows.reference(experts, spec, x, slots.long(), rows)
    assert error(got, moe_combine.reference(rows, weights, torch.float32)) < 2e-6
    last = moe_decode(experts, spec, x[1:], slots[1:], weights[1:])
    assert torch.equal(last[0], got[1])


def test_a_blob_may_lie_in_any_slot() -> None:
    torch.manual_seed(2)
    spec = blob_spec("nvfp4", FEW_HIDDEN, FEW_INNER)
    experts = bank(spec, SLOTS)
    moved = torch.tensor([4, 2, 0, 5, 1, 3])
    elsewhere = torch.empty_like(experts)
    elsewhere[moved] = experts
    x, weights = torch.randn(1, FEW_HIDDEN), torch.rand(1, 3)
    slots = torch.tensor([[0, 2, 5]], dtype=torch.int32)
    there = moved[slots.long()].int()
    assert torch.equal(
        moe_decode(experts, spec, x, slots, weights), moe_decode(elsewhere, spec, x, there, weights)
    )


@pytest.mark.parametrize(("storage", "bias"), KINDS)
def test_many_tokens(storage: str, bias: str | None) -> None:
    torch.manual_seed(3)
    spec = blob_spec(storage, HIDDEN, INNER, bias=bias)
    experts = bank(spec, SLOTS)
    x = torch.randn(20, HIDDEN).to(torch.bfloat16)
    slots = torch.rand(20, SLOTS).topk(3).indices.int()
    slots[1, 1] = -1
    weights = torch.rand(20, 3)
    got = torch.full((20, 3, HIDDEN), 7.0)
    prefill_rows(experts, spec, x, slots, got)
    wanted = torch.full((20, 3, HIDDEN), 7.0)
    moe_expert_rows.reference(experts, spec, x.float(), slots.long(), wanted)
    assert torch.equal(got[1, 1], wanted[1, 1]), "a route without a slot stays as it was"
    assert error(got, wanted) < 4e-3
    exact = moe_combine.reference(got, weights, torch.float32)
    assert error(combine(got, weights, torch.float32), exact) < 1e-6
    alone = torch.empty(1, 3, HIDDEN)
    prefill_rows(experts, spec, x[4:5], slots[4:5], alone)
    assert torch.equal(alone[0], got[4])


def test_room_follows_from_experts_not_from_slots() -> None:
    """A layer names few of a large pool's slots, and room for each of them would be much more."""
    slots = torch.tensor([[900, 3], [3, 17], [900, 3]], dtype=torch.int32)
    few, all_of_them = Sorted(slots, 1000, 2, experts=3), Sorted(slots, 1000, 2)
    assert (few.most_tiles, all_of_them.most_tiles) == (6, 9)
    assert torch.equal(few.ends, all_of_them.ends)
    assert torch.equal(few.order, all_of_them.order[: len(few.order)])
    spec = blob_spec("nvfp4", HIDDEN, INNER)
    experts, x = bank(spec, SLOTS), torch.randn(20, HIDDEN).to(torch.bfloat16)
    some = torch.randint(2, 5, (20, 3), dtype=torch.int32)
    got, wanted = torch.empty(2, 20, 3, HIDDEN)
    prefill_rows(experts, spec, x, some, got, experts=3)
    prefill_rows(experts, spec, x, some, wanted)
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("height", [2, 16])
@pytest.mark.parametrize("routes", [1, 7, 600])
def test_routes_by_slot(routes: int, height: int) -> None:
    torch.manual_seed(routes)
    slots = torch.randint(-1, 9, (routes, 1), dtype=torch.int32)
    order = Sorted(slots, 9, height)
    tiles = order.order.view(-1, height)
    first = 0
    for slot in range(9):
        placed = tiles[first : int(order.ends[slot])].flatten()
        wanted = (slots[:, 0] == slot).nonzero().flatten()
        assert torch.equal(placed[placed >= 0].sort().values, wanted.int())
        assert len(placed) == -(-len(wanted) // height) * height
        first = int(order.ends[slot])
    assert first <= order.most_tiles
    assert (tiles[first:] == -1).all()
