"""What holds of bfloat16 on a GPU: as near as a CPU's, and one result in any company and cache."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from engine.paths import demo_model, resources
from tests.parity import variants
from tests.parity.running import Runner, Sequence, in_company, relative_error
from tests.parity.tiny import FAMILIES, prompt, random_model, save

pytestmark = pytest.mark.gpu

PROMPTS = [prompt(n, seed=n) for n in (150, 1, 37, 64)]
CHUNKS = [50, 1, 1, 33]
STEPS = 8
QUANTISED: dict[str, tuple[variants.Quantise, dict[str, Any]]] = {
    "nvfp4": (variants.quantise_nvfp4, variants.NVFP4),
    "fp8": (variants.quantise_fp8, variants.FP8),
}
"""Of family qwen3_5_moe, which has every kind of layer."""


@pytest.fixture(scope="module", params=[*FAMILIES, *QUANTISED])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A family's tiny model in bfloat16, or one of them quantised."""
    made = tmp_path_factory.mktemp("models")
    if request.param in FAMILIES:
        model = random_model(FAMILIES[request.param]())
        return save(model.to(torch.bfloat16), made / "model")
    plain = save(random_model(FAMILIES["qwen3_5_moe"]()), made / "model")
    return variants.quantised(plain, made / "small", *QUANTISED[request.param])


def half(folder: Path, rate: float = 1.0, *, streamed: bool = False) -> Runner:
    return Runner(folder, "cuda", rate, torch.bfloat16, streamed=streamed)


def test_logits_are_as_near_as_a_cpu_s(folder: Path) -> None:
    def logits(runner: Runner) -> Tensor:
        sequence = Sequence(0)
        rows = [runner.prefill(sequence, PROMPTS[0][:-9], 64)]
        rows += [runner.step((sequence, token))[0] for token in PROMPTS[0][-9:].split(1)]
        return torch.cat(rows).cpu()

    exact = logits(Runner(folder))
    rounded = relative_error(logits(Runner(folder, dtype=torch.bfloat16)), exact)
    assert relative_error(logits(half(folder)), exact) <= 1.2 * rounded


def test_company_and_cache_change_not_one_bit(folder: Path) -> None:
    ran = in_company(half(folder), PROMPTS, CHUNKS, STEPS)
    for rate in (0.4, 0.05):
        again = in_company(half(folder, rate), PROMPTS, CHUNKS, STEPS)
        for (tokens, logits), (greedy, wanted) in zip(again, ran, strict=True):
            assert torch.equal(tokens, greedy)
            assert torch.equal(logits, wanted)
    runner = half(folder)
    for tokens, chunk, (greedy, wanted) in zip(PROMPTS, CHUNKS, ran, strict=True):
        ((alone, logits),) = in_company(runner, [tokens], [chunk], STEPS)
        assert torch.equal(alone, greedy)
        assert torch.equal(logits, wanted)


@pytest.mark.parametrize("rate", [0.75, 0.37, 0.12, 0.05])
def test_streaming_changes_not_one_bit(rate: float) -> None:
    """Of the demo model, also after evictions: a prompt in chunks, others, and single tokens."""
    prompts = [prompt(n, seed=n) for n in (300, 1, 150, 64)]
    chunks = [200, 1, 75, 64]
    whole = in_company(half(demo_model()), prompts, chunks, STEPS)
    runner, chance = half(demo_model(), rate, streamed=True), random.Random(1)
    assert runner.experts is not None
    for _ in range(3):
        ran = in_company(runner, prompts, chunks, STEPS)
        for (tokens, logits), (greedy, wanted) in zip(ran, whole, strict=True):
            assert torch.equal(tokens, greedy)
            assert torch.equal(logits, wanted)
        for pool, residency in runner.experts.pools:
            for slot in range(pool.slots):
                owner = int(residency.tables.owner[slot])
                if owner >= 0 and chance.random() < 0.5:
                    residency.release(*divmod(owner, residency.experts))


def test_the_demo_model_stays_close_to_float32() -> None:
    """On conversations that it was not trained on, a prompt and then single tokens."""
    held_out = Path(resources(), "models", "training", "held_out.jsonl")
    tokenizer = Tokenizer.from_file(str(demo_model() / "tokenizer.json"))
    with held_out.open(encoding="utf-8") as lines:
        text = "".join(json.loads(next(lines)) for _ in range(4))
    ids = torch.tensor(tokenizer.encode(text).ids[:220])

    def logits(runner: Runner) -> Tensor:
        sequence = Sequence(0)
        rows = [runner.prefill(sequence, ids[:200], 128)]
        rows += [runner.step((sequence, token))[0] for token in ids[200:].split(1)]
        return functional.log_softmax(torch.cat(rows), -1).cpu()

    exact, got = logits(Runner(demo_model())), logits(half(demo_model(), 0.3))
    divergence = functional.kl_div(got, exact, log_target=True, reduction="none").sum(-1)
    # What a CPU's bfloat16 is held to as well.
    assert float(divergence.mean()) < 0.01
    assert torch.equal(got, logits(half(demo_model())))
