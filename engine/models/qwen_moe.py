"""Families qwen2_moe and qwen3_moe: attention everywhere, dense or MoE feed-forward. Torch-free."""

from __future__ import annotations

from engine.formats.config_fields import Fields
from engine.formats.model_source import ModelSource
from engine.models.family import (
    Family,
    checked_top_k,
    end_tokens,
    read_attention,
    refuse_flag,
    require_silu,
    sparse_layers,
    ties_embeddings,
)
from engine.models.spec import AttentionSpec, ModelSpec, MoeSpec


def _describe(
    family: str, model: ModelSource, fields: Fields, attention: AttentionSpec, shared: int
) -> ModelSpec:
    require_silu(fields)
    refuse_flag(fields, "use_sliding_window")
    layers = sparse_layers(fields)
    has_dense = any(layer.feed_forward == "dense" for layer in layers)
    # Newer files of qwen3_moe call it num_local_experts.
    experts = fields.integer("num_experts" if fields.has("num_experts") else "num_local_experts")
    moe = MoeSpec(
        experts=experts,
        top_k=checked_top_k(fields, experts),
        intermediate=fields.integer("moe_intermediate_size"),
        normalise_top_k=fields.flag("norm_topk_prob", False),
        shared_intermediate=shared,
        shared_gate=bool(shared),
    )
    return ModelSpec(
        family=family,
        vocab_size=fields.integer("vocab_size"),
        hidden=fields.integer("hidden_size"),
        layers=layers,
        attention=attention,
        norm_eps=fields.number("rms_norm_eps"),
        context_tokens=fields.integer("max_position_embeddings"),
        dense_intermediate=fields.integer("intermediate_size") if has_dense else 0,
        moe=moe if any(layer.feed_forward == "moe" for layer in layers) else None,
        tie_embeddings=ties_embeddings(model, fields),
        end_tokens=end_tokens(model, fields),
    )


def describe_qwen2(model: ModelSource) -> ModelSpec:
    """Biased q, k and v; a gated shared expert."""
    fields = Fields(model.config, model.config_source)
    bias = fields.flag("qkv_bias", True)
    attention = read_attention(fields, bias=bias, output_bias=False, qk_norm=False)
    shared = fields.integer("shared_expert_intermediate_size")
    return _describe("qwen2_moe", model, fields, attention, shared)


def describe_qwen3(model: ModelSource) -> ModelSpec:
    """Normed q and k; no shared expert."""
    fields = Fields(model.config, model.config_source)
    bias = fields.flag("attention_bias", False)
    attention = read_attention(fields, bias=bias, output_bias=bias, qk_norm=True)
    return _describe("qwen3_moe", model, fields, attention, 0)


QWEN2_MOE = Family("qwen2_moe", ("qwen2_moe",), describe_qwen2)
QWEN3_MOE = Family("qwen3_moe", ("qwen3_moe",), describe_qwen3)
