"""The layers that families are composed of, loaded under the hub's names."""

from __future__ import annotations

from engine.kernels.delta_layer import DeltaParameters
from engine.kernels.moe_layer import SharedExpert
from engine.layers.attention import Attention
from engine.layers.decoder import DecoderLayer
from engine.layers.gated_delta import GatedDelta
from engine.layers.linear import Mlp, together
from engine.layers.moe import ExpertsForward, Moe
from engine.models.loader import DenseLoader
from engine.models.spec import ModelSpec


def layer_base(layer: int) -> str:
    return f"model.layers.{layer}"


def attention(loader: DenseLoader, spec: ModelSpec, layer: int) -> Attention:
    """`self_attn` of one layer, as the spec's attention says."""
    a, hidden, base = spec.attention, spec.hidden, f"{layer_base(layer)}.self_attn"
    rows = a.heads * a.head_dim
    kv_rows = a.kv_heads * a.head_dim
    norms = None
    if a.qk_norm:
        norms = (
            loader.norm(f"{base}.q_norm.weight", a.head_dim, spec.norm_eps, spec.norm_plus_one),
            loader.norm(f"{base}.k_norm.weight", a.head_dim, spec.norm_eps, spec.norm_plus_one),
        )
    return Attention(
        layer=layer,
        spec=a,
        qkv=together(
            loader.linear(f"{base}.q_proj", rows * (2 if a.output_gate else 1), hidden, a.qkv_bias),
            loader.linear(f"{base}.k_proj", kv_rows, hidden, a.qkv_bias),
            loader.linear(f"{base}.v_proj", kv_rows, hidden, a.qkv_bias),
        ),
        o=together(loader.linear(f"{base}.o_proj", hidden, rows, a.output_bias)),
        norms=norms,
    )


def dense(loader: DenseLoader, spec: ModelSpec, layer: int) -> Mlp:
    return loader.mlp(f"{layer_base(layer)}.mlp", spec.hidden, spec.dense_intermediate)


def moe(loader: DenseLoader, spec: ModelSpec, layer: int, experts: ExpertsForward) -> Moe:
    """Router and shared expert of one layer; `experts` computes the routed ones."""
    m, base = spec.moe, f"{layer_base(layer)}.mlp"
    if m is None:
        raise ValueError(f"layer {layer} is MoE and the spec has no experts")
    shared = None
    if m.shared_intermediate:
        mlp = loader.mlp(f"{base}.shared_expert", spec.hidden, m.shared_intermediate)
        gate = (
            loader.linear(f"{base}.shared_expert_gate", 1, spec.hidden) if m.shared_gate else None
        )
        shared = SharedExpert(mlp.gate_up_down, None if gate is None else gate.weight)
    return Moe(
        layer=layer,
        top_k=m.top_k,
        normalise_top_k=m.normalise_top_k,
        router=loader.router(f"{base}.gate.weight", m.experts, spec.hidden),
        experts=experts,
        shared=shared,
    )


def gated_delta(loader: DenseLoader, spec: ModelSpec, layer: int) -> GatedDelta:
    """`linear_attn` of one layer, with separate projections for qkv, z, b and a."""
    d, hidden, base = spec.gated_delta, spec.hidden, f"{layer_base(layer)}.linear_attn"
    if d is None:
        raise ValueError(f"layer {layer} is recurrent and the spec has no gated delta rule")
    values = d.value_heads * d.value_dim
    channels = 2 * d.key_heads * d.key_dim + values
    conv = loader.vector(f"{base}.conv1d.weight", (channels, 1, d.conv_kernel))
    return GatedDelta(
        layer=layer,
        into=together(
            loader.linear(f"{base}.in_proj_qkv", channels, hidden),
            loader.linear(f"{base}.in_proj_z", values, hidden),
            loader.linear(f"{base}.in_proj_b", d.value_heads, hidden),
            loader.linear(f"{base}.in_proj_a", d.value_heads, hidden),
        ),
        parameters=DeltaParameters(
            conv_weight=conv.squeeze(1),
            a_log=loader.vector(f"{base}.A_log", (d.value_heads,)),
            dt_bias=loader.vector(f"{base}.dt_bias", (d.value_heads,)),
            norm_weight=loader.vector(f"{base}.norm.weight", (d.value_dim,)),
            eps=spec.norm_eps,
        ),
        out=loader.linear(f"{base}.out_proj", hidden, values),
    )


def decoder_layer(
    loader: DenseLoader, spec: ModelSpec, layer: int, experts: ExpertsForward
) -> DecoderLayer:
    """One layer as the spec says which mixer and which feed-forward it has."""
    kind, base = spec.layers[layer], layer_base(layer)
    mixer = attention if kind.mixer == "attention" else gated_delta
    eps, plus_one = spec.norm_eps, spec.norm_plus_one
    return DecoderLayer(
        mixer_norm=loader.norm(f"{base}.input_layernorm.weight", spec.hidden, eps, plus_one),
        mixer=mixer(loader, spec, layer),
        feed_forward_norm=loader.norm(
            f"{base}.post_attention_layernorm.weight", spec.hidden, eps, plus_one
        ),
        feed_forward=(
            dense(loader, spec, layer)
            if kind.feed_forward == "dense"
            else moe(loader, spec, layer, experts)
        ),
    )
