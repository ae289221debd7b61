"""The bundled demo model: complete, within its limits, and readable."""

from __future__ import annotations

import itertools
import json
import math
import re
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from engine.formats.checkpoint import open_checkpoint
from engine.layers.moe import ExpertsForward
from engine.models.registry import build_model
from engine.models.spec import ModelSpec
from tests.parity.running import Runner, Sequence

DEMO = Path(__file__).parents[1] / "resources" / "models" / "demo"
FILES = [
    "LICENSE",
    "README.md",
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
]


def read(name: str) -> dict[str, object]:
    value = json.loads((DEMO / name).read_text(encoding="utf-8"))
    assert isinstance(value, dict)
    return value


def test_files_are_there_and_small_enough() -> None:
    sizes = {path.name: path.stat().st_size for path in DEMO.iterdir()}
    assert set(FILES) <= set(sizes)
    assert max(sizes.values()) <= 15_000_000
    assert sum(sizes.values()) <= 22_000_000


def test_shape_is_a_sparse_qwen2_moe() -> None:
    config = read("config.json")
    assert config["model_type"] == "qwen2_moe"
    experts, active = config["num_experts"], config["num_experts_per_tok"]
    assert isinstance(experts, int) and isinstance(active, int)
    assert experts >= 16 and active * 4 <= experts
    assert config["quantization_config"]["quant_algo"] == "NVFP4"  # type: ignore[index]


def test_index_and_shards_agree() -> None:
    index = read("model.safetensors.index.json")["weight_map"]
    assert isinstance(index, dict)
    found: dict[str, str] = {}
    for file in sorted(set(index.values())):
        with safe_open(DEMO / file, framework="pt") as shard:
            found.update(dict.fromkeys(shard.keys(), file))
    assert found == index
    packed = [name for name in index if f"{name}_scale" in index]
    assert packed and all(f"{name}_scale_2" in index for name in packed)


def test_tokenizer_knows_the_chat_markers() -> None:
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    config = read("config.json")
    assert tokenizer.get_vocab_size() == config["vocab_size"]
    assert tokenizer.token_to_id("<|im_end|>") == config["eos_token_id"]
    text = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert "im_start" in str(read("tokenizer_config.json")["chat_template"])


HELD_OUT = DEMO.parent / "training" / "held_out.jsonl"
CONVERSATIONS = 12
ANSWER = re.compile(r"<\|im_start\|>assistant\n(.*?)<\|im_end\|>", re.DOTALL)


class Loads:
    """Counts routed tokens by layer and expert on their way to whoever computes them."""

    def __init__(self, spec: ModelSpec, experts: ExpertsForward) -> None:
        assert spec.moe is not None
        self.counts = torch.zeros(len(spec.layers), spec.moe.experts)
        self._experts = experts

    def __call__(
        self, layer: int, x: Tensor, ids: Tensor, weights: Tensor | None, singles: int
    ) -> Tensor:
        self.counts[layer] += torch.bincount(ids.flatten(), minlength=self.counts.shape[1])
        return self._experts(layer, x, ids, weights, singles)

    def entropies(self) -> list[float]:
        """Of each layer's loads, as a share of even loads' entropy."""
        share = self.counts / self.counts.sum(-1, keepdim=True)
        entropy = -torch.xlogy(share, share).sum(-1) / math.log(share.shape[1])
        return [float(layer) for layer in entropy]


def test_the_cards_held_out_figures_are_real() -> None:
    """Nats a character of answers and their end markers, and how evenly experts are used."""
    card = re.search(r"\| this model \| ([0-9.]+) \|", (DEMO / "README.md").read_text("utf-8"))
    assert card is not None
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    runner = Runner(DEMO, rows=3)
    assert runner.experts is not None
    loads = Loads(runner.spec, runner.experts)
    files = open_checkpoint(DEMO)
    runner.model = build_model(files, runner.spec, runner.device, torch.float32, loads)
    nats, characters = 0.0, 0
    with HELD_OUT.open(encoding="utf-8") as lines:
        for line in itertools.islice(lines, CONVERSATIONS):
            text = json.loads(line)
            encoded = tokenizer.encode(text)
            tokens = torch.tensor(encoded.ids)
            sequence = Sequence(0)
            losses = functional.cross_entropy(
                runner.prefill(sequence, tokens, 512)[:-1], tokens[1:], reduction="none"
            )
            runner.release(sequence)
            for answer in ANSWER.finditer(text):
                end = answer.end()
                counted = [
                    place - 1
                    for place, (start, stop) in enumerate(encoded.offsets)
                    if answer.start(1) <= start and stop <= end
                ]
                nats += float(losses[counted].sum())
                characters += len(answer[1])
    assert characters > 5000
    assert nats / characters == pytest.approx(float(card[1]), rel=0.15)
    assert min(loads.entropies()) > 0.6
