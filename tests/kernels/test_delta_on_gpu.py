"""The gated delta rule with the real tiles: heads of 128, full chunks, many programs at once."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.chunk_table import ChunkRun, ChunkTable, even_lengths
from engine.kernels.gpu.delta_decode import delta_decode
from engine.kernels.gpu.delta_prefill import delta_prefill
from engine.kernels.gpu.delta_shapes import QWEN3_NEXT
from tests.kernels.delta_layers import Pools, by_definition, inputs, parameters, placed, pools

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda")
OUTPUT = 4e-3
"""Relative error of outputs, which are rounded to bfloat16."""
CONVOLVED = 4e-3
"""Of states: float32 sums of what the convolution rounded to bfloat16."""


def far(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def _layer(rows: int, states: int) -> tuple:  # type: ignore[type-arg]
    own = placed(parameters(QWEN3_NEXT), CUDA)
    given = tuple(part.to(CUDA) for part in inputs(QWEN3_NEXT, rows, torch.bfloat16))
    return own, given, pools(QWEN3_NEXT, states, torch.bfloat16).to(CUDA)


@pytest.mark.parametrize("rows", [1, 30, 64, 700])
def test_a_prompt_is_near_float64(rows: int) -> None:
    own, given, held = _layer(rows, 1)
    exact_out, exact_state = by_definition(QWEN3_NEXT, own, given, held)
    table = ChunkTable.build([ChunkRun(0, 0, even_lengths(rows))], CUDA)
    out = delta_prefill(*given, own, held.conv, held.recurrent, table)
    assert far(out, exact_out) < OUTPUT
    assert far(held.recurrent[0], exact_state) < CONVOLVED


def test_snapshots_continue_to_the_same_bits() -> None:
    own, given, held = _layer(300, 2)
    kept = Pools(torch.zeros_like(held.conv), torch.zeros_like(held.recurrent))
    lengths = [64, 64, 7, 64, 64, 37]
    whole, pool = held.clone(), (kept.conv, kept.recurrent)
    run = ChunkRun(1, 0, lengths, {2: 0})
    out = delta_prefill(
        *given, own, whole.conv, whole.recurrent, ChunkTable.build([run], CUDA), pool
    )
    late = tuple(part[135:] for part in given)
    table = ChunkTable.build([ChunkRun(0, 0, lengths[3:])], CUDA)
    rest = delta_prefill(*late, own, kept.conv, kept.recurrent, table)
    assert torch.equal(rest, out[135:])
    assert torch.equal(kept.recurrent[0], whole.recurrent[1])
    assert torch.equal(kept.conv[0], whole.conv[1])


def test_a_token_s_bits_do_not_depend_on_the_batch() -> None:
    own, given, held = _layer(8, 8)
    states = torch.arange(8, device=CUDA).flip(0)
    together = held.clone()
    out = delta_decode(*given, own, together.conv, together.recurrent, states)
    for row in (0, 5):
        alone = held.clone()
        one = tuple(part[row : row + 1] for part in given)
        got = delta_decode(*one, own, alone.conv, alone.recurrent, states[row : row + 1])
        assert torch.equal(got[0], out[row])
        state = int(states[row])
        assert torch.equal(alone.recurrent[state], together.recurrent[state])
