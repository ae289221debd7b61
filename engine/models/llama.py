"""Family llama: dense layers with grouped-query attention; safetensors and GGUF. Torch-free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.formats.config_fields import Fields
from engine.formats.model_source import ModelSource
from engine.models.family import (
    Family,
    end_tokens,
    layer_count,
    read_attention,
    refuse_flag,
    require_silu,
    ties_embeddings,
)
from engine.models.llama_gguf import hub_config
from engine.models.spec import LayerSpec, ModelSpec

if TYPE_CHECKING:
    from engine.formats.checkpoint import Checkpoint


def view(checkpoint: Checkpoint) -> Checkpoint:
    if checkpoint.kind != "gguf":
        return checkpoint
    from engine.models.views import LlamaGguf

    return LlamaGguf(checkpoint)


def describe(model: ModelSource) -> ModelSpec:
    config = hub_config(model) if model.kind == "gguf" else model.config
    fields = Fields(config, model.config_source)
    require_silu(fields)
    refuse_flag(fields, "mlp_bias")
    bias = fields.flag("attention_bias", False)
    return ModelSpec(
        family="llama",
        vocab_size=fields.integer("vocab_size"),
        hidden=fields.integer("hidden_size"),
        layers=(LayerSpec("attention", "dense"),) * layer_count(fields),
        attention=read_attention(fields, bias=bias, output_bias=bias, qk_norm=False),
        norm_eps=fields.number("rms_norm_eps"),
        context_tokens=fields.integer("max_position_embeddings"),
        dense_intermediate=fields.integer("intermediate_size"),
        tie_embeddings=ties_embeddings(model, fields),
        end_tokens=end_tokens(model, fields),
    )


FAMILY = Family("llama", ("llama",), describe, view)
