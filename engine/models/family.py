"""What a model family is, and what families share when they read a config. Torch-free."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.errors import UnsupportedModel
from engine.formats.config_fields import Fields
from engine.formats.model_source import ModelSource
from engine.models.rope import read_rope
from engine.models.spec import AttentionSpec, LayerSpec, ModelSpec

if TYPE_CHECKING:
    from engine.formats.checkpoint import Checkpoint

MOST_LAYERS = 4096


@dataclass(frozen=True)
class Family:
    """A family turns a config into a spec; the spec says what layers a model is composed of.

    `view` gives an open checkpoint the hub's plain names, under which all families are loaded.
    """

    name: str
    model_types: tuple[str, ...]
    describe: Callable[[ModelSource], ModelSpec]
    view: Callable[[Checkpoint], Checkpoint] = lambda checkpoint: checkpoint
    skipped: tuple[str, ...] = ()
    """How the names of tensors begin that are not read."""


def layer_count(fields: Fields) -> int:
    return fields.integer("num_hidden_layers", maximum=MOST_LAYERS)


def require_silu(fields: Fields) -> None:
    activation = fields.text("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedModel(
            f"{fields.source}: hidden_act {activation!r} is not supported, only silu"
        )


def refuse_flag(fields: Fields, name: str) -> None:
    if fields.flag(name, False):
        raise UnsupportedModel(f"{fields.source}: {name} is not supported")


def read_attention(
    fields: Fields,
    *,
    bias: bool,
    output_bias: bool,
    qk_norm: bool,
    output_gate: bool = False,
    partial: float = 1.0,
) -> AttentionSpec:
    """Heads, head size and rotation; everything a family knows without its config comes in."""
    heads = fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise fields.error("num_key_value_heads", f"is {kv_heads}, which does not divide {heads}")
    hidden = fields.integer("hidden_size")
    if not fields.has("head_dim") and hidden % heads:
        raise fields.error("num_attention_heads", f"is {heads}, which does not divide {hidden}")
    head_dim = fields.integer("head_dim", hidden // heads)
    context = fields.integer("max_position_embeddings")
    return AttentionSpec(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rope=read_rope(fields, head_dim, context, partial),
        qkv_bias=bias,
        output_bias=output_bias,
        qk_norm=qk_norm,
        output_gate=output_gate,
    )


def sparse_layers(fields: Fields) -> tuple[LayerSpec, ...]:
    """Qwen's rule: every decoder_sparse_step-th layer is MoE unless mlp_only_layers names it."""
    step = fields.integer("decoder_sparse_step", 1)
    dense = set(fields.integers("mlp_only_layers"))
    count = layer_count(fields)
    return tuple(
        LayerSpec("attention", "moe" if i not in dense and (i + 1) % step == 0 else "dense")
        for i in range(count)
    )


def checked_top_k(fields: Fields, experts: int) -> int:
    top_k = fields.integer("num_experts_per_tok")
    if top_k > experts:
        raise fields.error("num_experts_per_tok", f"is {top_k}, more than the {experts} experts")
    return top_k


def end_tokens(model: ModelSource, *configs: Fields) -> tuple[int, ...]:
    """Every end that the configs and generation_config.json name, each once, in order."""
    source = f"{model.path}/generation_config.json"
    holders = (*configs, Fields(model.generation_config, source))
    found = [token for fields in holders for token in fields.token_ids("eos_token_id")]
    return tuple(dict.fromkeys(found))


def ties_embeddings(model: ModelSource, *configs: Fields) -> bool:
    """Whether the output layer is the embedding: as a config says, else by what there is."""
    for fields in configs:
        if fields.has("tie_word_embeddings"):
            return fields.flag("tie_word_embeddings")
    return not model.has("lm_head.weight")
