"""What is cached, and where experts are computed, changes not one bit of the output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.parity.conftest import Made
from tests.parity.running import Runner, in_company, relative_error
from tests.parity.tiny import FAMILIES, logits_of, prompt

MOE_FAMILIES = [name for name in FAMILIES if name != "llama"]
PREFILL, DECODE = 300, 32
PROMPTS = [prompt(PREFILL), prompt(20, seed=1)]


Ran = list[tuple[Tensor, Tensor]]


def run(runner: Runner) -> Ran:
    """Greedy tokens and logits of a sequence alone and whole, then of two in company and chunks,
    with whatever the first left in the slots."""
    alone = in_company(runner, PROMPTS[:1], [PREFILL], DECODE)
    return alone + in_company(runner, PROMPTS, [113, 7], DECODE)


@pytest.fixture(scope="module", params=MOE_FAMILIES)
def in_place(request: pytest.FixtureRequest, made: Callable[[str], Made]) -> tuple[Path, Ran]:
    """A model's folder and what it gives with every expert computed in the store."""
    reference, folder = made(request.param)
    ran = run(Runner(folder))
    for tokens, (greedy, logits) in zip([PROMPTS[0], *PROMPTS], ran, strict=True):
        expected = logits_of(reference, torch.cat([tokens, greedy]))
        assert relative_error(logits, expected) <= 1e-4
    return folder, ran


@pytest.mark.parametrize("rate", [1.0, 0.4, 0.05])
def test_logits_are_equal_at_any_cache_rate(in_place: tuple[Path, Ran], rate: float) -> None:
    folder, expected = in_place
    ran = run(Runner(folder, "sim", rate))
    for (greedy, logits), (tokens, wanted) in zip(ran, expected, strict=True):
        assert torch.equal(greedy, tokens)
        assert torch.equal(logits, wanted)


@pytest.mark.parametrize("rate", [0.75, 0.37])
def test_logits_are_equal_when_experts_are_streamed(
    in_place: tuple[Path, Ran], rate: float
) -> None:
    folder, expected = in_place
    runner = Runner(folder, "sim", rate, streamed=True)
    for (greedy, logits), (tokens, wanted) in zip(run(runner), expected, strict=True):
        assert torch.equal(greedy, tokens)
        assert torch.equal(logits, wanted)
    assert runner.experts is not None
    # Experts that no token is routed to were sent, too, or all of them are routed to.
    counters = runner.experts.counters()
    assert counters.fills >= counters.misses > 0
