"""One token of the gated delta rule on a GPU, against the torch operations."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.chunk_table import ChunkRun
from engine.kernels.gpu.delta_decode import delta_decode
from engine.kernels.gpu.delta_shapes import DeltaShape
from tests.kernels.delta_layers import (
    SHAPES,
    SINGLE,
    SMALL,
    by_definition,
    by_torch,
    inputs,
    parameters,
    pools,
)

# The interpreter cuts bfloat16 off where hardware rounds.
NEAR = {torch.float32: (1e-5, 1e-5), torch.bfloat16: (2e-2, 2e-2)}


@pytest.mark.parametrize(
    ("dtype", "index_dtype"), [(torch.float32, torch.int32), (torch.bfloat16, torch.int64)]
)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_one_token_equals_the_reference(
    shape: DeltaShape, dtype: torch.dtype, index_dtype: torch.dtype
) -> None:
    own, given, held = parameters(shape), inputs(shape, 2, dtype), pools(shape, 4, dtype)
    expected = held.clone()
    order = [3, 0]
    wanted = torch.cat(
        [
            by_torch(shape, own, given, expected, ChunkRun(state, row, [1]))
            for row, state in enumerate(order)
        ]
    )
    states = torch.tensor(order, dtype=index_dtype)
    out = delta_decode(*given, own, held.conv, held.recurrent, states)
    rtol, atol = NEAR[dtype]
    assert out.dtype == dtype
    torch.testing.assert_close(out, wanted, rtol=rtol, atol=atol)
    torch.testing.assert_close(held.recurrent, expected.recurrent, rtol=rtol, atol=atol)
    assert torch.equal(held.conv, expected.conv)


@pytest.mark.parametrize("steps", [40, pytest.param(200, marks=pytest.mark.full)])
def test_long_runs_stay_near_float64(steps: int) -> None:
    shape = SINGLE
    own, given = parameters(shape), inputs(shape, steps, torch.float32)
    held = pools(shape, 1, torch.float32)
    reference = held.clone()
    by_torch(shape, own, given, reference, ChunkRun(0, 0, [1] * steps))
    _, exact = by_definition(shape, own, given, held)
    for step in range(steps):
        row = tuple(part[step : step + 1] for part in given)
        delta_decode(*row, own, held.conv, held.recurrent, torch.zeros(1, dtype=torch.int64))
    error = (held.recurrent[0] - exact).norm() / exact.norm()
    theirs = (reference.recurrent[0] - exact).norm() / exact.norm()
    assert error < max(2 * theirs, 1e-6)


@pytest.mark.parametrize("a", [-80.0, 0.0, 30.0, 3e4])
@pytest.mark.parametrize("b", [-40.0, 0.0, 40.0])
def test_extreme_gates(a: float, b: float) -> None:
    """From a state that is kept whole to one that is gone; rates of zero and one."""
    shape, dtype = SINGLE, torch.float32
    own, given, held = parameters(shape), inputs(shape, 1, dtype), pools(shape, 1, dtype)
    given[2].fill_(b)
    given[3].fill_(a)
    expected = held.clone()
    wanted = by_torch(shape, own, given, expected, ChunkRun(0, 0, [1]))
    out = delta_decode(*given, own, held.conv, held.recurrent, torch.tensor([0]))
    torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(held.recurrent, expected.recurrent, rtol=1e-5, atol=1e-6)


def test_a_sequence_is_the_same_beside_others_and_moves_no_other_state() -> None:
    shape, dtype = SMALL, torch.bfloat16
    own, given, before = parameters(shape), inputs(shape, 4, dtype), pools(shape, 6, dtype)
    together = before.clone()
    states = torch.tensor([5, -1, 0, 3])
    out = delta_decode(*given, own, together.conv, together.recurrent, states)
    assert torch.equal(out[1], torch.zeros_like(out[1]))
    for row in (0, 2, 3):
        alone = before.clone()
        one = tuple(part[row : row + 1] for part in given)
        single = delta_decode(*one, own, alone.conv, alone.recurrent, states[row : row + 1])
        assert torch.equal(single[0], out[row])
        assert torch.equal(alone.recurrent[states[row]], together.recurrent[states[row]])
        assert torch.equal(alone.conv[states[row]], together.conv[states[row]])
    for untouched in (1, 2, 4):
        assert torch.equal(before.recurrent[untouched], together.recurrent[untouched])
        assert torch.equal(before.conv[untouched], together.conv[untouched])


def test_projections_may_be_columns_of_one_tensor() -> None:
    shape, dtype = SMALL, torch.float32
    own, given, held = parameters(shape), inputs(shape, 2, dtype), pools(shape, 2, dtype)
    other = held.clone()
    states = torch.tensor([0, 1])
    wanted = delta_decode(*given, own, held.conv, held.recurrent, states)
    columns = torch.cat(given, dim=1).split([part.shape[1] for part in given], dim=1)
    out = delta_decode(*columns, own, other.conv, other.recurrent, states)
    assert torch.equal(out, wanted)
    assert torch.equal(held.conv, other.conv)


def test_shapes_that_do_not_fit_are_refused() -> None:
    shape, dtype = SMALL, torch.float32
    own, given, held = parameters(shape), inputs(shape, 2, dtype), pools(shape, 2, dtype)
    states = torch.tensor([0, 1])
    with pytest.raises(ValueError, match="z is"):
        delta_decode(given[0], given[1][:1], *given[2:], own, held.conv, held.recurrent, states)
    with pytest.raises(ValueError, match="not contiguous"):
        delta_decode(given[0].T.contiguous().T, *given[1:], own, held.conv, held.recurrent, states)
