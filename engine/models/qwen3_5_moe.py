"""Family qwen3_5_moe: gated delta rule in most layers, gated attention in the others, all MoE.

The hub's checkpoints are multimodal: the text tower is read, the vision tower and the heads for
multi-token prediction are skipped with a note. Torch-free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.formats.config_fields import Fields
from engine.formats.model_source import ModelSource
from engine.models.family import (
    Family,
    checked_top_k,
    end_tokens,
    layer_count,
    read_attention,
    require_silu,
    ties_embeddings,
)
from engine.models.spec import GatedDeltaSpec, LayerSpec, Mixer, ModelSpec, MoeSpec

if TYPE_CHECKING:
    from engine.formats.checkpoint import Checkpoint

SKIPPED = {
    "model.visual.": "the vision tower",
    "visual.": "the vision tower",
    "mtp.": "multi-token prediction",
}
_MIXERS: dict[str, Mixer] = {"full_attention": "attention", "linear_attention": "gated_delta"}


def view(checkpoint: Checkpoint) -> Checkpoint:
    from engine.models.views import text_tower

    return text_tower(checkpoint, tuple(SKIPPED))


def _notes(model: ModelSource) -> tuple[str, ...]:
    counts = dict.fromkeys(SKIPPED, 0)
    for name in model.names():
        prefix = next((p for p in SKIPPED if name.startswith(p)), None)
        if prefix is not None:
            counts[prefix] += 1
    return tuple(
        f"{count} tensors of {SKIPPED[prefix]} ({prefix}*) are skipped: text only"
        for prefix, count in counts.items()
        if count
    )


def _mixers(fields: Fields) -> list[Mixer]:
    count = layer_count(fields)
    kinds = fields.texts("layer_types")
    if not kinds:
        every = fields.integer("full_attention_interval", 4)
        return ["gated_delta" if (i + 1) % every else "attention" for i in range(count)]
    if len(kinds) != count:
        raise fields.error("layer_types", f"names {len(kinds)} layers of {count}")
    for kind in kinds:
        if kind not in _MIXERS:
            raise fields.error("layer_types", f"holds {kind!r}, not one of {sorted(_MIXERS)}")
    return [_MIXERS[kind] for kind in kinds]


def _gated_delta(fields: Fields) -> GatedDeltaSpec:
    keys, values = (
        fields.integer("linear_num_key_heads"),
        fields.integer("linear_num_value_heads"),
    )
    if values % keys:
        raise fields.error("linear_num_key_heads", f"is {keys}, which does not divide {values}")
    return GatedDeltaSpec(
        key_heads=keys,
        value_heads=values,
        key_dim=fields.integer("linear_key_head_dim"),
        value_dim=fields.integer("linear_value_head_dim"),
        conv_kernel=fields.integer("linear_conv_kernel_dim", minimum=2),
    )


def describe(model: ModelSource) -> ModelSpec:
    top = Fields(model.config, model.config_source)
    fields = top.child("text_config") if top.has("text_config") else top
    require_silu(fields)
    bias = fields.flag("attention_bias", False)
    experts = fields.integer("num_experts")
    return ModelSpec(
        family="qwen3_5_moe",
        vocab_size=fields.integer("vocab_size"),
        hidden=fields.integer("hidden_size"),
        layers=tuple(LayerSpec(mixer, "moe") for mixer in _mixers(fields)),
        attention=read_attention(
            fields,
            bias=bias,
            output_bias=bias,
            qk_norm=True,
            output_gate=fields.flag("attn_output_gate", True),
            partial=0.25,
        ),
        norm_eps=fields.number("rms_norm_eps"),
        context_tokens=fields.integer("max_position_embeddings"),
        gated_delta=_gated_delta(fields),
        moe=MoeSpec(
            experts=experts,
            top_k=checked_top_k(fields, experts),
            intermediate=fields.integer("moe_intermediate_size"),
            # The family's router always normalises; configs may carry norm_topk_prob or not.
            normalise_top_k=True,
            shared_intermediate=fields.integer("shared_expert_intermediate_size"),
            shared_gate=True,
        ),
        tie_embeddings=ties_embeddings(model, top, fields),
        norm_plus_one=True,
        end_tokens=end_tokens(model, top, fields),
        notes=_notes(model),
    )


FAMILY = Family(
    "qwen3_5_moe", ("qwen3_5_moe", "qwen3_5_moe_text"), describe, view, skipped=tuple(SKIPPED)
)
