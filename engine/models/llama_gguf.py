"""What a GGUF file of architecture llama is called on the hub: config and names. Torch-free."""

from __future__ import annotations

import math
import re
from typing import Any

from engine.errors import UnsupportedModel
from engine.formats.config_fields import Fields
from engine.formats.model_files import open_gguf
from engine.formats.model_source import ModelSource

_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_ROPE_FACTORS = "rope_freqs.weight"


def hub_name(name: str) -> str:
    """`blk.3.attn_q.weight` as `model.layers.3.self_attn.q_proj.weight`; others as they are."""
    match = _BLOCK.fullmatch(name)
    if match and match[2] in _INNER:
        return f"model.layers.{match[1]}.{_INNER[match[2]]}.{match[3]}"
    return _OUTER.get(name, name)


def hub_config(model: ModelSource) -> dict[str, Any]:
    """The hub's config.json for the metadata. ModelConfigError names a missing metadata key."""
    meta = Fields(model.config, model.config_source)
    if meta.has("llama.expert_count") and meta.integer("llama.expert_count", minimum=0):
        raise UnsupportedModel(f"{meta.source}: llama with experts is not supported from GGUF")
    heads = meta.integer("llama.attention.head_count")
    hidden = meta.integer("llama.embedding_length")
    head_dim = meta.integer("llama.attention.key_length", hidden // heads)
    config: dict[str, Any] = {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": meta.integer("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": meta.integer("llama.attention.head_count_kv", heads),
        "intermediate_size": meta.integer("llama.feed_forward_length"),
        "max_position_embeddings": meta.integer("llama.context_length"),
        "rms_norm_eps": meta.number("llama.attention.layer_norm_rms_epsilon"),
        "vocab_size": model.info("token_embd.weight").shape[0],
        "head_dim": head_dim,
        "attention_bias": model.has("blk.0.attn_q.bias"),
        "tie_word_embeddings": not model.has("output.weight"),
        "rope_parameters": _rope(model, meta, head_dim),
        "eos_token_id": [
            token
            for key in ("eos_token_id", "eot_token_id", "eom_token_id")
            for token in meta.token_ids(f"tokenizer.ggml.{key}")
        ],
    }
    return config


def _rope(model: ModelSource, meta: Fields, head_dim: int) -> dict[str, Any]:
    theta = meta.number("llama.rope.freq_base", 10000.0, above=1.0)
    dim = meta.integer("llama.rope.dimension_count", head_dim)
    rope: dict[str, Any] = {"rope_theta": theta, "partial_rotary_factor": dim / head_dim}
    if model.has(_ROPE_FACTORS):
        return rope | _llama3(model, theta, dim)
    kind = meta.text("llama.rope.scaling.type", "none")
    if kind == "none":
        return rope
    rope |= {"rope_type": kind, "factor": meta.number("llama.rope.scaling.factor")}
    if meta.has("llama.rope.scaling.original_context_length"):
        original = meta.integer("llama.rope.scaling.original_context_length")
        rope["original_max_position_embeddings"] = original
    return rope


_LLAMA3_LOW, _LLAMA3_HIGH, _LLAMA3_POSITIONS = 1.0, 4.0, 8192
"""Meta's own values, in every model that has this scaling."""


def _llama3(model: ModelSource, theta: float, dim: int) -> dict[str, Any]:
    """GGUF stores llama3's scaling as one divisor a pair; find the parameters that give them.

    The divisor of the slowest pair is the factor itself; the others are checked against it.
    """
    info = model.info(_ROPE_FACTORS)
    divisors = open_gguf(info.file).tensor(_ROPE_FACTORS).reshape(-1).tolist()
    factor = max(divisors)
    if (
        len(divisors) != dim // 2
        or not all(math.isfinite(divisor) and divisor > 0 for divisor in divisors)
        or not all(
            math.isclose(divisor, _llama3_divisor(theta ** (-2 * i / dim), factor), rel_tol=1e-3)
            for i, divisor in enumerate(divisors)
        )
    ):
        raise UnsupportedModel(f"{info.file}: {_ROPE_FACTORS} is not llama3's scaling of the rope")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LLAMA3_LOW,
        "high_freq_factor": _LLAMA3_HIGH,
        "original_max_position_embeddings": _LLAMA3_POSITIONS,
    }


def _llama3_divisor(frequency: float, factor: float) -> float:
    """What llama3 divides a frequency (radians per position) by: layers/rotary.py, inverted."""
    turns = _LLAMA3_POSITIONS * frequency / (2 * math.pi)
    blend = min(max((turns - _LLAMA3_LOW) / (_LLAMA3_HIGH - _LLAMA3_LOW), 0.0), 1.0)
    return 1 / ((1 - blend) / factor + blend)
