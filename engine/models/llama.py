"""Family llama: dense layers with grouped-query attention; safetensors and GGUF."""

from __future__ import annotations

from engine.formats.checkpoint import Checkpoint
from engine.formats.config_fields import Fields
from engine.models.blocks import decoder_layer
from engine.models.family import (
    Family,
    end_tokens,
    layer_count,
    read_attention,
    refuse_flag,
    require_silu,
    ties_embeddings,
)
from engine.models.llama_gguf import LlamaGguf
from engine.models.spec import LayerSpec, ModelSpec


def view(checkpoint: Checkpoint) -> Checkpoint:
    return LlamaGguf(checkpoint) if checkpoint.kind == "gguf" else checkpoint


def describe(checkpoint: Checkpoint) -> ModelSpec:
    fields = Fields(checkpoint.config, checkpoint.config_source)
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
        tie_embeddings=ties_embeddings(checkpoint, fields),
        end_tokens=end_tokens(checkpoint, fields),
    )


FAMILY = Family("llama", ("llama",), view, describe, decoder_layer)
