"""What is cached, and where experts are computed, changes not one bit of the output."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.parity.running import Runner, Sequence
from tests.parity.tiny import FAMILIES, prompt, random_model, save

MOE_FAMILIES = [name for name in FAMILIES if name != "llama"]


def run(runner: Runner) -> Tensor:
    sequence, tokens = Sequence(0), prompt(60)
    prefill = runner.prefill(sequence, tokens, 25)
    logits = torch.cat([prefill, runner.decode(sequence, prefill, 6)[1]])
    runner.release(sequence)
    return logits


@pytest.fixture(scope="module", params=MOE_FAMILIES)
def in_place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Tensor]:
    """A model's folder and its logits with every expert computed in the store."""
    folder = save(random_model(FAMILIES[request.param]()), tmp_path_factory.mktemp("model"))
    return folder, run(Runner(folder))


@pytest.mark.parametrize("rate", [1.0, 0.4, 0.05])
def test_logits_are_equal_at_any_cache_rate(in_place: tuple[Path, Tensor], rate: float) -> None:
    folder, expected = in_place
    runner = Runner(folder, "sim", rate)
    assert torch.equal(run(runner), expected)
    # And again, with whatever the first run left in the slots.
    assert torch.equal(run(runner), expected)
