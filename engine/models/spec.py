"""What a model is, apart from its weights: what config.json (or GGUF metadata) becomes.

Everything below the registry works on this record, never on a checkpoint's own config keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Mixer = Literal["attention", "gated_delta"]
FeedForward = Literal["dense", "moe"]


@dataclass(frozen=True)
class RopeSpec:
    """Rotary embedding. The first `dim` of a head's dimensions rotate, in the half-split layout."""

    theta: float
    dim: int
    kind: Literal["default", "linear", "llama3", "yarn"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True)
class AttentionSpec:
    heads: int
    kv_heads: int
    head_dim: int
    rope: RopeSpec
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    """RMS norm over each head's dimensions of q and k, before the rotation."""
    output_gate: bool = False
    """q_proj is doubled: half of it, through a sigmoid, gates the attention's output."""


@dataclass(frozen=True)
class GatedDeltaSpec:
    """Gated delta rule (linear attention) with a causal convolution before it."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int


@dataclass(frozen=True)
class MoeSpec:
    experts: int
    top_k: int
    intermediate: int
    normalise_top_k: bool
    """Routing weights of the chosen experts are divided by their sum."""
    shared_intermediate: int = 0
    shared_gate: bool = False
    activation: Literal["silu"] = "silu"


@dataclass(frozen=True)
class LayerSpec:
    mixer: Mixer
    feed_forward: FeedForward


@dataclass(frozen=True)
class ModelSpec:
    family: str
    vocab_size: int
    hidden: int
    layers: tuple[LayerSpec, ...]
    attention: AttentionSpec
    norm_eps: float
    context_tokens: int
    """The model's own limit."""
    dense_intermediate: int = 0
    gated_delta: GatedDeltaSpec | None = None
    moe: MoeSpec | None = None
    tie_embeddings: bool = False
    norm_plus_one: bool = False
    """RMS norm weights are stored as w - 1."""
    end_tokens: tuple[int, ...] = ()
    """Union of the ends that config.json and generation_config.json name."""
    notes: tuple[str, ...] = field(default=())
    """Sentences for the log: what of the checkpoint is skipped knowingly."""

    @property
    def moe_layers(self) -> tuple[int, ...]:
        return tuple(i for i, layer in enumerate(self.layers) if layer.feed_forward == "moe")

    @property
    def attention_layers(self) -> tuple[int, ...]:
        return tuple(i for i, layer in enumerate(self.layers) if layer.mixer == "attention")

    @property
    def recurrent_layers(self) -> tuple[int, ...]:
        return tuple(i for i, layer in enumerate(self.layers) if layer.mixer == "gated_delta")
