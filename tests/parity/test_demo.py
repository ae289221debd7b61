"""The bundled model on real text: beside transformers, in bfloat16, at any cache rate."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from engine.formats.checkpoint import open_checkpoint
from engine.paths import demo_model, resources
from engine.runtime.bench_twin import Twin
from tests.parity.running import Runner, Sequence, relative_error

TOKENS = 300


@pytest.fixture(scope="module")
def text() -> Tensor:
    """int64 [300]: conversations that the model was not trained on."""
    held_out = Path(resources(), "models", "training", "held_out.jsonl")
    tokenizer = Tokenizer.from_file(str(demo_model() / "tokenizer.json"))
    with held_out.open(encoding="utf-8") as lines:
        conversations = [json.loads(next(lines)) for _ in range(4)]
    return torch.tensor(tokenizer.encode("".join(conversations)).ids[:TOKENS])


def logits_of(runner: Runner, text: Tensor, chunk: int = 128) -> Tensor:
    return runner.prefill(Sequence(0), text, chunk).to(torch.float32)


@pytest.fixture(scope="module")
def reference(text: Tensor) -> Tensor:
    """float32 [300, vocab]: the engine's own float32 logits."""
    return logits_of(Runner(demo_model()), text)


def test_logits_are_those_of_transformers(text: Tensor, reference: Tensor) -> None:
    twin = Twin(open_checkpoint(demo_model()), torch.float32, torch.device("cpu"))
    assert relative_error(reference, twin.logits(text.tolist())) <= 1e-4


@pytest.mark.parametrize("rate", [0.6, 0.1])
def test_logits_are_equal_at_any_cache_rate(text: Tensor, reference: Tensor, rate: float) -> None:
    assert torch.equal(logits_of(Runner(demo_model(), "sim", rate), text), reference)


def test_bfloat16_stays_close_to_float32(
    text: Tensor,
    reference: Tensor,
    record_property: Callable[[str, object], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    half = logits_of(Runner(demo_model(), dtype=torch.bfloat16), text)
    expected = functional.log_softmax(reference, -1)
    divergence = functional.kl_div(
        functional.log_softmax(half, -1), expected, log_target=True, reduction="none"
    ).sum(-1)
    same = float((half.argmax(-1) == reference.argmax(-1)).float().mean())
    record_property("kl_mean", float(divergence.mean()))
    with capsys.disabled():
        print(
            f"\ndemo, bfloat16 against float32 over {len(text)} tokens: KL divergence "
            f"{divergence.mean():.2e} nats a token (worst {divergence.max():.2e}), "
            f"top-1 agreement {same:.1%}"
        )
    # A wrong rounding place costs tenths of a nat; the model itself is at about 1.3 a token.
    assert float(divergence.mean()) < 0.01
