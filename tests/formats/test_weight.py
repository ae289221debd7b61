"""Matrices that are laid end to end."""

from __future__ import annotations

import pytest
import torch

from engine.formats.weight import Projections, StoredWeight
from engine.kernels.dequantise import dequantise
from tests.kernels.stored import stored


def same(got: StoredWeight, wanted: StoredWeight) -> bool:
    numbers = dequantise(got, torch.float32), dequantise(wanted, torch.float32)
    return got.format == wanted.format and torch.equal(*numbers)


@pytest.mark.parametrize(
    ("made", "runs"),
    [
        ([("bfloat16", 5), ("bfloat16", 3), ("bfloat16", 1)], [(5, 3, 1)]),
        ([("fp8_block", 128), ("fp8_block", 60), ("bfloat16", 2)], [(128, 60), (2,)]),
        ([("fp8_block", 100), ("fp8_block", 128)], [(100,), (128,)]),
        ([("mxfp4", 5), ("mxfp4", 3)], [(5, 3)]),
        ([("nvfp4", 5), ("nvfp4", 3)], [(5,), (3,)]),
        ([("bfloat16", 4), ("nvfp4", 4), ("bfloat16", 4)], [(4,), (4,), (4,)]),
    ],
    ids=str,
)
def test_neighbours_of_one_format_are_one_matrix(
    made: list[tuple[str, int]], runs: list[tuple[int, ...]]
) -> None:
    weights = [stored(storage, rows, 160) for storage, rows in made]
    laid = Projections.end_to_end(weights, [None] * len(weights))
    assert [run.rows for run in laid.runs] == runs
    assert all(same(*pair) for pair in zip(laid.weights, weights, strict=True))
    whole = [dequantise(run.weight, torch.float32) for run in laid.runs]
    assert torch.equal(
        torch.cat(whole), torch.cat([dequantise(weight, torch.float32) for weight in weights])
    )
    for run, first in zip(laid.runs, (0, len(runs[0])), strict=False):
        lies = run.weight.parts["weight"].data_ptr()
        assert laid.weights[first].parts["weight"].data_ptr() == lies


def test_biases_follow_their_matrices() -> None:
    weights = [stored("bfloat16", rows, 32) for rows in (2, 3, 4)]
    first, second = torch.randn(2), torch.randn(3)
    laid = Projections.end_to_end(weights, [first, second, None])
    assert [run.rows for run in laid.runs] == [(2, 3), (4,)]
    bias = laid.runs[0].bias
    assert bias is not None and torch.equal(bias, torch.cat([first, second]))
    assert laid.runs[1].bias is None
    assert laid.biases == (first, second, None)


def test_matrices_of_other_widths_stay_apart() -> None:
    laid = Projections.end_to_end(
        [stored("bfloat16", 2, 32), stored("bfloat16", 2, 64)], [None] * 2
    )
    assert [run.rows for run in laid.runs] == [(2,), (2,)]
