"""A GGUF file of architecture llama, seen as the hub's llama: its config, names and row order."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from engine.errors import UnsupportedModel
from engine.formats.checkpoint import Checkpoint, wrong_tensor
from engine.formats.config_fields import Fields
from engine.formats.tensor_info import TensorInfo
from engine.layers.rotary import inverse_frequencies
from engine.models.spec import RopeSpec
from engine.models.views import View

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


class LlamaGguf(View):
    """Rows of q and k return to the hub's order: GGUF interleaves each head's two halves."""

    def __init__(self, inner: Checkpoint) -> None:
        super().__init__(inner)
        self._stored = {hub_name(name): name for name in inner.names()}
        self.config = _config(inner)
        self._heads = {
            "q_proj": int(self.config["num_attention_heads"]),
            "k_proj": int(self.config["num_key_value_heads"]),
        }

    def names(self) -> Iterable[str]:
        return self._stored.keys()

    def has(self, name: str) -> bool:
        return name in self._stored

    def info(self, name: str) -> TensorInfo:
        """As `read` gives it: float32, whatever the blocks in the file are."""
        stored = self.inner.info(self._stored.get(name, name))
        nbytes = 4 * math.prod(stored.shape)
        return TensorInfo(name, "float32", stored.shape, nbytes, stored.file, stored.offset)

    def read(self, name: str) -> Tensor:
        tensor = self.inner.read(self._stored.get(name, name)).to(torch.float32)
        heads = self._heads.get(name.split(".")[-2])
        if heads is None:
            return tensor
        pairs = tensor.shape[0] // heads // 2
        if tensor.shape[0] != heads * pairs * 2:
            raise wrong_tensor(
                self.info(name), f"has {tensor.shape[0]} rows, which {heads} heads do not divide"
            )
        rest = tensor.shape[1:]
        interleaved = tensor.reshape(heads, pairs, 2, *rest)
        return interleaved.transpose(1, 2).reshape(tensor.shape)


def _config(inner: Checkpoint) -> dict[str, Any]:
    """The hub's config.json for the metadata. ModelConfigError names a missing metadata key."""
    meta = Fields(inner.config, inner.config_source)
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
        "vocab_size": inner.info("token_embd.weight").shape[0],
        "head_dim": head_dim,
        "attention_bias": inner.has("blk.0.attn_q.bias"),
        "rope_parameters": _rope(inner, meta, head_dim),
        "eos_token_id": [
            token
            for key in ("eos_token_id", "eot_token_id", "eom_token_id")
            for token in meta.token_ids(f"tokenizer.ggml.{key}")
        ],
    }
    return config


def _rope(inner: Checkpoint, meta: Fields, head_dim: int) -> dict[str, Any]:
    theta = meta.number("llama.rope.freq_base", 10000.0)
    dim = meta.integer("llama.rope.dimension_count", head_dim)
    rope: dict[str, Any] = {"rope_theta": theta, "partial_rotary_factor": dim / head_dim}
    if inner.has(_ROPE_FACTORS):
        return rope | _llama3(inner, theta, dim)
    kind = meta.text("llama.rope.scaling.type", "none")
    if kind == "none":
        return rope
    rope |= {"rope_type": kind, "factor": meta.number("llama.rope.scaling.factor")}
    if meta.has("llama.rope.scaling.original_context_length"):
        original = meta.integer("llama.rope.scaling.original_context_length")
        rope["original_max_position_embeddings"] = original
    return rope


def _llama3(inner: Checkpoint, theta: float, dim: int) -> dict[str, Any]:
    """GGUF stores llama3's scaling as one divisor a pair; find the parameters that give them.

    The divisor of the slowest pair is the factor itself; the rest is checked against Meta's values.
    """
    divisors = inner.read(_ROPE_FACTORS).to(torch.float32).reshape(-1)
    rope = RopeSpec(theta, dim, "llama3", float(divisors.max()), 1.0, 4.0, 8192)
    expected = inverse_frequencies(RopeSpec(theta, dim)) / inverse_frequencies(rope)
    if divisors.shape != expected.shape or not torch.allclose(divisors, expected, rtol=1e-3):
        info = inner.info(_ROPE_FACTORS)
        raise UnsupportedModel(f"{info.file}: {_ROPE_FACTORS} is not llama3's scaling of the rope")
    return {
        "rope_type": "llama3",
        "factor": rope.factor,
        "low_freq_factor": rope.low_freq_factor,
        "high_freq_factor": rope.high_freq_factor,
        "original_max_position_embeddings": rope.original_positions,
    }
