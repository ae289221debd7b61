"""The same operations on a GPU: float32 and bfloat16 logits beside the CPU's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.parity import variants
from tests.parity.running import Runner, Sequence, relative_error
from tests.parity.tiny import FAMILIES, prompt, random_model, save

pytestmark = pytest.mark.gpu


def _logits(runner: Runner, tokens: torch.Tensor) -> torch.Tensor:
    """All but ten tokens in chunks, then one by one; float32 [T, vocab] on the CPU."""
    sequence = Sequence(0)
    prefill = runner.prefill(sequence, tokens[:-10], 64)
    single = [runner.step((sequence, token))[0] for token in tokens[-10:].split(1)]
    return torch.cat([prefill, *single]).cpu()


@pytest.mark.parametrize("family", list(FAMILIES))
def test_the_gpu_gives_the_cpu_s_logits(tmp_path: Path, family: str) -> None:
    folder = save(random_model(FAMILIES[family]()), tmp_path / "model")
    tokens = prompt(150)
    expected = _logits(Runner(folder), tokens)
    assert relative_error(_logits(Runner(folder, "cuda", 0.4), tokens), expected) <= 1e-4
    # What rounding to bfloat16 costs depends on the model. The CPU's kernels round less often in
    # attention than torch's operations, which answer on a GPU.
    rounded = relative_error(_logits(Runner(folder, dtype=torch.bfloat16), tokens), expected)
    logits = _logits(Runner(folder, "cuda", 0.4, torch.bfloat16), tokens)
    assert relative_error(logits, expected) <= 1.2 * rounded


@pytest.mark.parametrize("scheme", ["nvfp4", "fp8"])
def test_quantised_weights_on_the_gpu(tmp_path: Path, scheme: str) -> None:
    wide = {"hidden_size": 160, "moe_intermediate_size": 144, "num_experts": 4}
    folder = save(random_model(FAMILIES["qwen3_5_moe"](**wide)), tmp_path / "model")
    quantise, config = {
        "nvfp4": (variants.quantise_nvfp4, variants.NVFP4),
        "fp8": (variants.quantise_fp8, variants.FP8),
    }[scheme]
    stored = variants.quantised(folder, tmp_path / "small", quantise, config)
    expected = Runner(stored).prefill(Sequence(0), prompt(80), 33)
    logits = Runner(stored, "cuda").prefill(Sequence(0), prompt(80), 33).cpu()
    assert relative_error(logits, expected) <= 1e-4
