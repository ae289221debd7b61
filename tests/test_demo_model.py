"""The bundled demo model: complete, within its limits, and readable."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
    safetensors = pytest.importorskip("safetensors")
    index = read("model.safetensors.index.json")["weight_map"]
    assert isinstance(index, dict)
    found: dict[str, str] = {}
    for file in sorted(set(index.values())):
        with safetensors.safe_open(DEMO / file, framework="pt") as shard:
            found.update(dict.fromkeys(shard.keys(), file))
    assert found == index
    packed = [name for name in index if f"{name}_scale" in index]
    assert packed and all(f"{name}_scale_2" in index for name in packed)


def test_tokenizer_knows_the_chat_markers() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    config = read("config.json")
    assert tokenizer.get_vocab_size() == config["vocab_size"]
    assert tokenizer.token_to_id("<|im_end|>") == config["eos_token_id"]
    text = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert "im_start" in str(read("tokenizer_config.json")["chat_template"])
