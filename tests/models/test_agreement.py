"""A config and weights that contradict each other are refused with both numbers, before loading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedConfig

from engine.errors import ModelFilesError
from engine.formats.checkpoint import open_checkpoint
from engine.models.registry import check_model, describe
from engine.options import EngineOptions
from engine.runtime.loading import load
from tests.parity import variants
from tests.parity.test_variants import write_llama_gguf
from tests.parity.tiny import FAMILIES, multimodal, random_model, save


def check(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    check_model(checkpoint, describe(checkpoint))


def changed(
    folder: Path,
    target: Path,
    config: dict[str, Any],
    tensors: dict[str, Tensor | None] | None = None,
) -> Path:
    """A copy with other fields, and tensors added or (None) left out."""
    own, weights = variants.read(folder)
    for name, tensor in (tensors or {}).items():
        if tensor is None:
            del weights[name]
        else:
            weights[name] = tensor
    return variants.write(target, {**own, **config}, weights)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every family as transformers writes it, and the multimodal one."""
    top = tmp_path_factory.mktemp("whole")
    configs: dict[str, PreTrainedConfig] = {name: make() for name, make in FAMILIES.items()}
    configs["multimodal"] = multimodal()
    return {name: save(random_model(config), top / name) for name, config in configs.items()}


@pytest.mark.parametrize("family", [*FAMILIES, "multimodal"])
def test_what_transformers_writes_agrees(whole: dict[str, Path], family: str) -> None:
    check(whole[family])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("less", [True, False], ids=["fewer", "more"])
def test_another_number_of_layers(
    whole: dict[str, Path], tmp_path: Path, family: str, less: bool
) -> None:
    config, _ = variants.read(whole[family])
    held = config["num_hidden_layers"]
    said = held - 1 if less else held + 1
    path = changed(whole[family], tmp_path / "m", {"num_hidden_layers": said, "layer_types": None})
    says = rf"config\.json: field num_hidden_layers is {said}, but the weights hold {held} layers"
    with pytest.raises(ModelFilesError, match=says):
        check(path)
    with pytest.raises(ModelFilesError, match=says):
        load(EngineOptions(model=str(path), device="cpu"))


def test_a_layer_in_the_middle_that_is_missing(whole: dict[str, Path], tmp_path: Path) -> None:
    _, weights = variants.read(whole["llama"])
    gone = dict.fromkeys(name for name in weights if name.startswith("model.layers.1."))
    path = changed(whole["llama"], tmp_path / "m", {}, {**gone})
    with pytest.raises(ModelFilesError, match=r"is 3, .* hold 2 layers: number 1 is missing"):
        check(path)


@pytest.mark.parametrize("said", [2, 5])
def test_another_number_of_blocks_in_a_gguf_file(
    whole: dict[str, Path], tmp_path: Path, said: int
) -> None:
    path, _ = write_llama_gguf(whole["llama"], tmp_path / "gguf", **{"llama.block_count": said})
    with pytest.raises(ModelFilesError, match=rf"llama\.block_count is {said}, .* hold 3 layers"):
        check(path)


def test_heads_for_multi_token_prediction_are_no_layers(
    whole: dict[str, Path], tmp_path: Path
) -> None:
    mtp = {"mtp.layers.0.mlp.experts.9.up_proj.weight": torch.zeros(2, 2)}
    check(changed(whole["qwen3_5_moe"], tmp_path / "m", {}, {**mtp}))


@pytest.mark.parametrize("field", ["num_experts", "num_local_experts"])
@pytest.mark.parametrize("said", [4, 9])
def test_another_number_of_experts(
    whole: dict[str, Path], tmp_path: Path, said: int, field: str
) -> None:
    config, weights = variants.read(whole["qwen3_moe"])
    for name in ("num_experts", "num_local_experts"):
        config.pop(name, None)
    path = variants.write(tmp_path / "m", {**config, field: said}, weights)
    says = f"field {field} is {said}, but the weights hold 8 experts in layer 0"
    with pytest.raises(ModelFilesError, match=says):
        check(path)


@pytest.mark.parametrize("said", [95, 97])
def test_another_vocabulary(whole: dict[str, Path], tmp_path: Path, said: int) -> None:
    path = changed(whole["llama"], tmp_path / "m", {"vocab_size": said})
    with pytest.raises(ModelFilesError, match=rf"vocab_size is {said}, but .* has 96 rows"):
        check(path)


def test_an_output_layer_that_contradicts_the_config(
    whole: dict[str, Path], tmp_path: Path
) -> None:
    path = changed(whole["llama"], tmp_path / "a", {"tie_word_embeddings": True})
    with pytest.raises(ModelFilesError, match=r"tie_word_embeddings is true, .* not the same"):
        check(path)
    path = changed(whole["llama"], tmp_path / "b", {}, {"lm_head.weight": None})
    with pytest.raises(ModelFilesError, match=r"tie_word_embeddings is false, .* is missing"):
        check(path)
    _, weights = variants.read(whole["llama"])
    twice = {"lm_head.weight": weights["model.embed_tokens.weight"].clone()}
    check(changed(whole["llama"], tmp_path / "c", {"tie_word_embeddings": True}, {**twice}))


@pytest.mark.parametrize(
    ("family", "fields", "tensor"),
    [
        ("qwen3_moe", {"num_attention_heads": 8, "num_key_value_heads": 2}, "q_proj"),
        ("qwen3_moe", {"num_key_value_heads": 4}, "k_proj"),
        ("qwen3_moe", {"head_dim": 16}, "q_norm"),
        ("qwen3_5_moe", {"linear_num_value_heads": 2}, "conv1d"),
        ("qwen2_moe", {"shared_expert_intermediate_size": 24}, "shared_expert"),
        ("qwen2_moe", {"mlp_only_layers": []}, r"layers\.1\..*shared_expert.* is missing"),
        ("llama", {"num_key_value_heads": 1}, "k_proj"),
        ("llama", {"intermediate_size": 64}, "gate_proj"),
    ],
)
def test_sizes_that_contradict_a_tensor_are_told_before_experts_are_read(
    whole: dict[str, Path], tmp_path: Path, family: str, fields: dict[str, Any], tensor: str
) -> None:
    path = changed(whole[family], tmp_path / "m", fields)
    with pytest.raises(ModelFilesError, match=tensor):
        check(path)
