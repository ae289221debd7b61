"""Routing on the GPU (or the interpreter) against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.kernels.gpu import router
from engine.kernels.pointwise import router_top_k

SHAPES = [
    # rows, hidden, experts, top_k
    (1, 600, 16, 4),
    (8, 100, 24, 3),
    (17, 64, 130, 8),
]


def made(
    rows: int, hidden: int, experts: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    torch.manual_seed(rows)
    x = torch.randn(rows, hidden).to(device, dtype)
    return x, torch.randn(experts, hidden).to(device)


@pytest.mark.parametrize("most_apart", [0, 1024])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "hidden", "experts", "top_k"), SHAPES)
def test_rows_are_routed_as_in_float64(
    rows: int,
    hidden: int,
    experts: int,
    top_k: int,
    dtype: torch.dtype,
    most_apart: int,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(router, "_MOST_APART", most_apart)
    x, weight = made(rows, hidden, experts, dtype, device)
    logits = x.double() @ weight.double().t()
    parts = router.router_parts(x, weight)
    assert (parts.double().sum(0) - logits).norm() <= 1e-6 * logits.norm()
    ids, weights = router.route(x, weight, top_k, True)
    expected_weights, expected = torch.topk(logits.softmax(-1), top_k)
    assert torch.equal(ids, expected)
    assert torch.allclose(
        weights.double(), expected_weights / expected_weights.sum(-1, keepdim=True), atol=1e-5
    )


@pytest.mark.parametrize("normalise", [False, True])
def test_the_best_of_given_logits_are_the_reference_s(
    normalise: bool, device: torch.device
) -> None:
    torch.manual_seed(0)
    logits = torch.randn(5, 60).to(device)
    ids, weights = router.router_top_k(logits, 6, normalise)
    expected, expected_weights = router_top_k.reference(logits, 6, normalise)
    assert torch.equal(ids, expected)
    assert torch.allclose(weights, expected_weights, rtol=1e-6)


def test_of_equal_logits_the_lowest_expert_comes_first(device: torch.device) -> None:
    logits = torch.tensor([[0.0, -1.0, -0.0, 0.0, -1.0, -2.0]], device=device)
    ids, weights = router.router_top_k(logits, 5, True)
    assert ids.tolist() == [[0, 2, 3, 1, 4]]
    assert weights[0, 0] == weights[0, 2]


def test_logits_far_apart_do_not_overflow(device: torch.device) -> None:
    logits = torch.tensor([[1e38, -1e38, 0.0, 88.0]], device=device)
    ids, weights = router.router_top_k(logits, 2, True)
    assert ids.tolist() == [[0, 3]]
    assert weights.tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize(("together", "alone"), [(16, 1), (40, 17)])
def test_bits_do_not_depend_on_the_other_rows(
    together: int, alone: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight = made(together, 200, 20, torch.bfloat16, device)
    ids, weights = router.route(x, weight, 4, False)
    for first in (0, together - alone):
        rows = slice(first, first + alone)
        for most_apart in (1024, 0):
            monkeypatch.setattr(router, "_MOST_APART", most_apart)
            got_ids, got_weights = router.route(x[rows], weight, 4, False)
            assert torch.equal(got_ids, ids[rows])
            assert torch.equal(got_weights, weights[rows])


@pytest.mark.gpu
def test_bits_do_not_depend_on_the_tile() -> None:
    """On a GPU alone: in the interpreter products of another shape are another library call."""
    x, weight = made(1500, 2048, 256, torch.bfloat16, torch.device("cuda"))
    ids, weights = router.route(x, weight, 8, True)
    for rows in (slice(0, 1), slice(7, 15), slice(100, 400)):
        got_ids, got_weights = router.route(x[rows], weight, 8, True)
        assert torch.equal(got_ids, ids[rows])
        assert torch.equal(got_weights, weights[rows])
