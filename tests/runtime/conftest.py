"""Tiny models with random weights, written by transformers once a session."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from transformers import LlamaConfig, PreTrainedConfig

VOCAB = 96
SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def save(config: PreTrainedConfig, folder: Path) -> Path:
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def dense_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of attention."""
    return save(LlamaConfig(**SMALL), tmp_path_factory.mktemp("models") / "dense")


@pytest.fixture(scope="session")
def moe_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of attention, eight experts each, two of them a token, and a shared one."""
    config = transformers.Qwen2MoeConfig(
        **SMALL,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=32,
        num_experts=8,
        num_experts_per_tok=2,
    )
    return save(config, tmp_path_factory.mktemp("models") / "moe")


@pytest.fixture(scope="session")
def recurrent_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three layers of the gated delta rule and one of attention, with experts."""
    config = transformers.Qwen3_5MoeTextConfig(
        **{**SMALL, "num_hidden_layers": 4},
        head_dim=16,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        num_experts=8,
        num_experts_per_tok=2,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        linear_conv_kernel_dim=4,
        layer_types=["linear_attention"] * 3 + ["full_attention"],
    )
    return save(config, tmp_path_factory.mktemp("models") / "recurrent")


@pytest.fixture(params=["dense", "moe", "recurrent"])
def model(request: pytest.FixtureRequest) -> Path:
    """Each of the tiny models in turn."""
    folder: Path = request.getfixturevalue(f"{request.param}_model")
    return folder
