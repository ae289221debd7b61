"""Tiny random checkpoints of every family, as transformers writes them, and its logits for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

VOCAB = 96

COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
MOE: dict[str, Any] = {
    **COMMON,
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 3,
}


def llama(**changes: Any) -> transformers.PreTrainedConfig:
    values = {**COMMON, "intermediate_size": 96, "head_dim": 24, "attention_bias": True}
    return transformers.LlamaConfig(**{**values, **changes})


def qwen2_moe(**changes: Any) -> transformers.PreTrainedConfig:
    values = {
        **MOE,
        "intermediate_size": 96,
        "shared_expert_intermediate_size": 48,
        "mlp_only_layers": [1],
        "norm_topk_prob": False,
        "tie_word_embeddings": True,
    }
    return transformers.Qwen2MoeConfig(**{**values, **changes})


def qwen3_moe(**changes: Any) -> transformers.PreTrainedConfig:
    values = {**MOE, "intermediate_size": 96, "head_dim": 24, "norm_topk_prob": True}
    return transformers.Qwen3MoeConfig(**{**values, **changes})


def qwen3_5_moe(**changes: Any) -> transformers.PreTrainedConfig:
    values = {
        **MOE,
        "num_hidden_layers": 4,
        "head_dim": 32,
        "shared_expert_intermediate_size": 48,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 16,
    }
    return transformers.Qwen3_5MoeTextConfig(**{**values, **changes})


def multimodal() -> transformers.PreTrainedConfig:
    """qwen3_5_moe as the hub has it: a text tower beside a vision tower."""
    vision = {
        "depth": 1,
        "hidden_size": 32,
        "num_heads": 2,
        "intermediate_size": 32,
        "out_hidden_size": 64,
        "patch_size": 4,
        "num_position_embeddings": 16,
    }
    text = {**qwen3_5_moe().to_dict(), "eos_token_id": 5}
    return transformers.Qwen3_5MoeConfig(text_config=text, vision_config=vision)


FAMILIES = {
    "llama": llama,
    "qwen2_moe": qwen2_moe,
    "qwen3_moe": qwen3_moe,
    "qwen3_5_moe": qwen3_5_moe,
}


def prompt(length: int, seed: int = 0) -> Tensor:
    return torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(seed))


def random_model(config: transformers.PreTrainedConfig, seed: int = 0) -> Any:
    """A model whose vectors (norms, biases, decays) are random too: none can be left out."""
    torch.manual_seed(seed)
    if isinstance(config, transformers.Qwen3_5MoeConfig):
        model = transformers.Qwen3_5MoeForConditionalGeneration(config).to(torch.float32).eval()
    else:
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def save(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def load(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@torch.no_grad()
def logits_of(model: Any, tokens: Tensor) -> Tensor:
    """float32 [T, vocab] of one sequence int64 [T], computed whole and without a cache."""
    out: Tensor = model(input_ids=tokens.unsqueeze(0), use_cache=False).logits[0]
    return out.to(torch.float32)
