"""Which experts a token takes and with what weights: against float64 and the torch reference."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from engine.kernels.pointwise import add_gated, route

pytestmark = pytest.mark.usefixtures("tier")
SHAPES = [(1, 16, 4), (5, 8, 8), (37, 60, 1), (200, 256, 10)]
"""Tokens, experts, experts of a token."""


def exact(x: Tensor, router: Tensor, top_k: int, normalise: bool) -> tuple[Tensor, Tensor]:
    logits = x.double() @ router.double().T
    order = logits.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
    weights = torch.softmax(logits, dim=-1).gather(1, order)
    return order, weights / weights.sum(-1, keepdim=True) if normalise else weights


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "experts", "top_k"), SHAPES)
def test_it_matches_float64(
    tokens: int, experts: int, top_k: int, dtype: torch.dtype, normalise: bool
) -> None:
    torch.manual_seed(experts)
    x, router = torch.randn(tokens, 96).to(dtype), torch.randn(experts, 96) / 4
    expected_ids, expected = exact(x, router, top_k, normalise)
    for threads in (1, 3):
        torch.set_num_threads(threads)
        ids, weights = route(x, router, top_k, normalise)
        assert torch.equal(ids, expected_ids)
        torch.testing.assert_close(weights.double(), expected, rtol=2e-5, atol=1e-9)
        alone = route(x[-1:], router, top_k, normalise)
        assert torch.equal(alone[0], ids[-1:])
        assert torch.equal(alone[1], weights[-1:])
    reference_ids, reference = route.reference(x, router, top_k, normalise)
    assert torch.equal(ids, reference_ids)
    torch.testing.assert_close(weights, reference, rtol=2e-5, atol=1e-9)


def test_of_equal_logits_the_lowest_expert_comes_first() -> None:
    router = torch.tensor([[1.0], [3.0], [2.0], [3.0], [2.0], [2.0]])
    ids, weights = route(torch.ones(1, 1), router, 4, True)
    assert ids.tolist() == [[1, 3, 2, 4]]
    assert weights[0, 0] == weights[0, 1]
    assert weights[0, 2] == weights[0, 3]


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_gives_valid_experts_and_the_references_weights(
    value: float, normalise: bool
) -> None:
    """The next step tells whose it is: here nothing may crash, nor touch the row beside."""
    torch.manual_seed(1)
    x, router = torch.randn(3, 32), torch.randn(16, 32)
    x[1, 7] = value
    ids, weights = route(x, router, 4, normalise)
    reference = route.reference(x, router, 4, normalise)[1]
    assert torch.equal(weights.isnan(), reference.isnan())
    assert weights[1].isnan().all()
    assert all(len(set(row)) == 4 and set(row) <= set(range(16)) for row in ids.tolist())
    beside = route(x[[0, 2]], router, 4, normalise)
    assert torch.equal(ids[[0, 2]], beside[0])
    assert torch.equal(weights[[0, 2]], beside[1])


def test_a_logit_that_is_no_number_is_taken_first() -> None:
    router = torch.tensor([[1.0], [2.0], [math.nan], [3.0]])
    ids, weights = route(torch.ones(1, 1), router, 2, True)
    assert ids.tolist() == [[2, 3]]
    assert weights.isnan().all()


def test_no_tokens_and_refusals() -> None:
    router = torch.randn(8, 16)
    ids, weights = route(torch.empty(0, 16), router, 2, True)
    assert ids.shape == weights.shape == (0, 2)
    for x, top_k in ((torch.randn(2, 16), 9), (torch.randn(2, 17), 2)):
        with pytest.raises(ValueError, match="of 8 experts"):
            route(x, router, top_k, True)


@pytest.mark.parametrize("rows", [0, 1, 40, 300])
def test_gated_sums_match_the_reference(rows: int) -> None:
    torch.manual_seed(rows)
    out, added, gate = torch.randn(rows, 577), torch.randn(rows, 577), torch.randn(rows, 1) * 4
    for threads in (1, 3):
        torch.set_num_threads(threads)
        plain = add_gated(out.clone(), added.clone(), None)
        assert torch.equal(plain, out + added)
        expected = out.double() + added.double() * torch.sigmoid(gate.double())
        mine = out.clone()
        result = add_gated(mine, added.clone(), gate)
        assert result.data_ptr() == mine.data_ptr()
        torch.testing.assert_close(result.double(), expected, rtol=1e-6, atol=1e-6)
    narrow = [part.to(torch.bfloat16) for part in (out, added, gate)]
    expected = add_gated.reference(*(part.clone() for part in narrow))
    assert torch.equal(add_gated(*narrow), expected)
    if rows:
        with pytest.raises(ValueError, match="by gates"):
            add_gated(out, added, torch.zeros(rows, 2))
