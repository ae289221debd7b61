"""Many tokens of the gated delta rule on a GPU, against the torch operations and float64."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.chunk_table import ChunkRun, ChunkTable, even_lengths
from engine.kernels.gpu.delta_prefill import delta_prefill
from engine.kernels.gpu.delta_shapes import DeltaShape
from tests.kernels.delta_layers import (
    PAIR,
    SHAPES,
    SINGLE,
    Pools,
    by_definition,
    by_torch,
    inputs,
    parameters,
    pools,
)

RUNS = [ChunkRun(3, 0, [64, 7]), ChunkRun(0, 71, [1])]
ROWS = 72


def far(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The error's length by that of what is expected."""
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [*((shape, torch.float32) for shape in SHAPES.values()), (PAIR, torch.bfloat16)],
    ids=[*SHAPES, "bfloat16"],
)
def test_a_ragged_table_equals_the_reference(shape: DeltaShape, dtype: torch.dtype) -> None:
    own, given, held = parameters(shape), inputs(shape, ROWS, dtype), pools(shape, 4, dtype)
    expected = held.clone()
    wanted = torch.cat([by_torch(shape, own, given, expected, run) for run in RUNS])
    out = delta_prefill(*given, own, held.conv, held.recurrent, ChunkTable.build(RUNS))
    assert out.dtype == dtype
    # The interpreter cuts bfloat16 off where hardware rounds.
    bound = 1e-6 if dtype == torch.float32 else 1e-2
    assert far(out, wanted) < bound
    assert far(held.recurrent, expected.recurrent) < bound
    assert torch.equal(held.conv, expected.conv)
    for state in (1, 2):
        assert torch.equal(held.recurrent[state], expected.recurrent[state])


def _from_float64(shape: DeltaShape, rows: int, a: float | None, b: float | None) -> None:
    """State and outputs are about as near to float64 as the torch operations are."""
    own, given = parameters(shape), inputs(shape, rows, torch.float32)
    if a is not None:
        given[3].fill_(a)
    if b is not None:
        given[2].fill_(b)
    held = pools(shape, 1, torch.float32)
    theirs = held.clone()
    run = ChunkRun(0, 0, even_lengths(rows))
    exact_out, exact_state = by_definition(shape, own, given, held)
    reference = by_torch(shape, own, given, theirs, run)
    out = delta_prefill(*given, own, held.conv, held.recurrent, ChunkTable.build([run]))
    assert far(out, exact_out) < max(3 * far(reference, exact_out), 1e-6)
    state = far(theirs.recurrent[0], exact_state)
    assert far(held.recurrent[0], exact_state) < max(3 * state, 1e-6)


def test_long_runs_stay_near_float64() -> None:
    _from_float64(SINGLE, 512, None, None)


@pytest.mark.parametrize(("a", "b"), [(-80.0, -40.0), (-80.0, 40.0), (0.0, -40.0), (1000.0, 40.0)])
def test_extreme_gates(a: float, b: float) -> None:
    """From a state that is kept whole to one that is gone; rates of zero and one."""
    _from_float64(SINGLE, 70, a, b)


def test_an_infinite_decay_forgets_everything() -> None:
    shape, dtype = SINGLE, torch.float32
    own, given, held = parameters(shape), inputs(shape, 3, dtype), pools(shape, 1, dtype)
    given[3].fill_(torch.inf)
    delta_prefill(*given, own, held.conv, held.recurrent, ChunkTable.build([ChunkRun(0, 0, [3])]))
    assert torch.isfinite(held.recurrent).all()
    assert torch.linalg.matrix_rank(held.recurrent[0, 0]) == 1


def test_keys_that_repeat() -> None:
    """Equal rows make the system's inverse a difference of large numbers for some methods."""
    shape, dtype = SINGLE, torch.float32
    own, given, held = parameters(shape), inputs(shape, 64, dtype), pools(shape, 1, dtype)
    for part in given[:1]:
        part[:] = part[:1]
    given[2].fill_(20.0)
    given[3].fill_(-80.0)
    _, exact = by_definition(shape, own, given, held)
    delta_prefill(*given, own, held.conv, held.recurrent, ChunkTable.build([ChunkRun(0, 0, [64])]))
    assert far(held.recurrent[0], exact) < 2e-6


def _kept(shape: DeltaShape, dtype: torch.dtype) -> Pools:
    empty = pools(shape, 3, dtype)
    empty.conv.zero_()
    empty.recurrent.zero_()
    return empty


def test_a_run_that_is_cut_or_continued_from_a_snapshot_equals_a_whole_one() -> None:
    shape, dtype = SINGLE, torch.bfloat16
    own, given, before = parameters(shape), inputs(shape, 76, dtype), pools(shape, 2, dtype)
    lengths = [2, 64, 1, 9]
    whole, kept = before.clone(), _kept(shape, dtype)
    table = ChunkTable.build([ChunkRun(1, 0, lengths, {0: 2, 1: 0})])
    views = kept.conv, kept.recurrent
    out = delta_prefill(*given, own, whole.conv, whole.recurrent, table, views)

    def rest(held: Pools, state: int, cut: int) -> torch.Tensor:
        first = sum(lengths[:cut])
        late = tuple(part[first:] for part in given)
        part = ChunkTable.build([ChunkRun(state, 0, lengths[cut:])])
        return delta_prefill(*late, own, held.conv, held.recurrent, part)

    for cut, row in ((1, 2), (2, 0)):
        again = kept.clone()
        assert torch.equal(rest(again, row, cut), out[sum(lengths[:cut]) :])
        assert torch.equal(again.recurrent[row], whole.recurrent[1])
        assert torch.equal(again.conv[row], whole.conv[1])
    assert torch.equal(kept.recurrent[1], torch.zeros_like(kept.recurrent[1]))

    split = before.clone()
    early = ChunkTable.build([ChunkRun(1, 0, lengths[:3])])
    start = tuple(part[: sum(lengths[:3])] for part in given)
    parts = [delta_prefill(*start, own, split.conv, split.recurrent, early), rest(split, 1, 3)]
    assert torch.equal(torch.cat(parts), out)
    assert torch.equal(split.recurrent, whole.recurrent)
    assert torch.equal(split.conv, whole.conv)


def test_a_sequence_is_the_same_beside_others() -> None:
    shape, dtype = PAIR, torch.bfloat16
    own, given, before = parameters(shape), inputs(shape, 12, dtype), pools(shape, 4, dtype)
    together = before.clone()
    runs = [ChunkRun(2, 0, [5, 3]), ChunkRun(0, 8, [4])]
    out = delta_prefill(*given, own, together.conv, together.recurrent, ChunkTable.build(runs))
    for run in runs:
        alone = before.clone()
        part = slice(run.first, run.first + sum(run.lengths))
        one = tuple(tensor[part] for tensor in given)
        table = ChunkTable.build([ChunkRun(run.state, 0, run.lengths)])
        assert torch.equal(delta_prefill(*one, own, alone.conv, alone.recurrent, table), out[part])
        assert torch.equal(alone.recurrent[run.state], together.recurrent[run.state])
        assert torch.equal(alone.conv[run.state], together.conv[run.state])


def test_tables_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="65 rows"):
        ChunkTable.build([ChunkRun(0, 0, [65])])
    with pytest.raises(ValueError, match="same state"):
        ChunkTable.build([ChunkRun(1, 0, [3]), ChunkRun(1, 3, [2])])
    shape, dtype = SINGLE, torch.float32
    own, given, held = parameters(shape), inputs(shape, 3, dtype), pools(shape, 1, dtype)
    table = ChunkTable.build([ChunkRun(0, 0, [3], {0: 0})])
    with pytest.raises(ValueError, match="no pool"):
        delta_prefill(*given, own, held.conv, held.recurrent, table)
