"""A tiny model of every kind of layer, each operation answered by its GPU kernel, interpreted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.kernels.registry import Operation
from tests.parity.running import Runner, Sequence, relative_error
from tests.parity.tiny import prompt, qwen3_5_moe, random_model, save

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="tests/parity has the same on a real GPU"
)
LAYERS = {
    "hidden_size": 32,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "num_experts": 4,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
}
FIRST, SECOND = prompt(4), prompt(3, seed=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = random_model(qwen3_5_moe(**LAYERS)).to(torch.bfloat16)
    return save(model, tmp_path_factory.mktemp("model"))


def alone(runner: Runner) -> Tensor:
    """A chunk, then a token."""
    sequence = Sequence(0)
    return torch.cat([runner.step((sequence, part))[0] for part in (FIRST[:3], FIRST[3:])])


def in_company(runner: Runner) -> Tensor:
    """The same, the token behind another prompt's chunk."""
    first, second = Sequence(0), Sequence(1)
    chunk = runner.step((first, FIRST[:3]))[0]
    return torch.cat([chunk, runner.step((second, SECOND), (first, FIRST[3:]))[1]])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's NumPy
def test_logits_are_near_and_equal_in_any_company(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = alone(Runner(folder, rows=2))
    own: Callable[..., Any] = Operation.kernel
    monkeypatch.setattr(Operation, "kernel", lambda operation, _: own(operation, "cuda"))
    got = alone(Runner(folder, "sim", 0.2, torch.bfloat16, rows=2))
    # On a CPU rounding costs 0.01 here; the interpreter cuts bits off instead.
    assert relative_error(got, exact) < 0.03
    assert torch.equal(in_company(Runner(folder, "sim", 1.0, torch.bfloat16, rows=2)), got)
