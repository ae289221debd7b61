"""A layer of the gated delta rule between its projections: convolution, decay and rate, the rule,
norm and gate, over rows of the state pool. Single tokens and prompts are operations of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from engine.kernels.chunk_table import CHUNK, ChunkRun, ChunkTable
from engine.kernels.gated_delta import causal_conv, gated_delta
from engine.kernels.pointwise import gated_rms_norm
from engine.kernels.registry import operation


@dataclass(frozen=True)
class DeltaParameters:
    """A layer's own numbers, all float32."""

    conv_weight: Tensor
    """[channels, taps]"""
    a_log: Tensor
    """[value_heads]"""
    dt_bias: Tensor
    """[value_heads]"""
    norm_weight: Tensor
    """[value_dim]"""
    eps: float


@operation("delta_decode", cuda="engine.kernels.gpu.delta_layer")
def delta_decode(
    qkv: Tensor,
    z: Tensor,
    b: Tensor,
    a: Tensor,
    parameters: DeltaParameters,
    conv: Tensor,
    recurrent: Tensor,
    states: Tensor,
) -> Tensor:
    """One token of S sequences: what the layer's output projection reads, [S, heads * value_dim].

    qkv [S, channels] (all heads' queries, keys, values), z [S, value_heads * value_dim], b and a
    [S, value_heads] are the input projections; conv [rows, channels, taps - 1] and recurrent
    float32 [rows, value_heads, key_dim, value_dim] one layer's views of the state pool, moved on in
    place. states int64 [S]: rows of the pool, no two alike.
    """
    decay, rate = _gates(b, a, parameters)
    out, conv[states], recurrent[states] = _mixed(
        *(qkv.unsqueeze(1), decay.unsqueeze(1), rate.unsqueeze(1)),
        *(parameters, conv[states], recurrent[states]),
    )
    return _gated(out.squeeze(1), z, parameters)


@operation("delta_prefill", cuda="engine.kernels.gpu.delta_layer")
def delta_prefill(
    qkv: Tensor,
    z: Tensor,
    b: Tensor,
    a: Tensor,
    parameters: DeltaParameters,
    conv: Tensor,
    recurrent: Tensor,
    table: ChunkTable,
    kept: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """The rows of the table's runs: what the output projection reads, [rows, heads * value_dim].

    The other arguments are `delta_decode`'s; `kept` are the same views of the pool that snapshots
    go to. A run's result depends on its rows, its states and its chunks alone. Rows of no run are
    undefined. Raises ValueError if the table has snapshots and there is no pool for them.
    """
    if table.keeps and kept is None:
        raise ValueError("the chunk table has snapshots, and no pool is given for them")
    decay, rate = _gates(b, a, parameters)
    out = recurrent.new_empty(len(qkv), recurrent.shape[1], recurrent.shape[3])
    for run in table.sequences:
        state, first = slice(run.state, run.state + 1), run.first
        for length, snapshot in _stretches(run):
            part = slice(first, first + length)
            mixed, conv[state], recurrent[state] = _mixed(
                *(qkv[part].unsqueeze(0), decay[part].unsqueeze(0), rate[part].unsqueeze(0)),
                *(parameters, conv[state], recurrent[state]),
            )
            out[part] = mixed.squeeze(0)
            if kept is not None and snapshot >= 0:
                kept[0][snapshot], kept[1][snapshot] = conv[run.state], recurrent[run.state]
            first += length
    return _gated(out, z, parameters)


def _stretches(run: ChunkRun) -> Iterator[tuple[int, int]]:
    """Rows, and the snapshot after them or -1: whole chunks and what follows them, which
    `gated_delta` cuts at the same places."""
    rows = 0
    for place, length in enumerate(run.lengths):
        rows += length
        snapshot = run.kept.get(place, -1)
        if length < CHUNK or snapshot >= 0 or place == len(run.lengths) - 1:
            yield rows, snapshot
            rows = 0


def _gates(b: Tensor, a: Tensor, parameters: DeltaParameters) -> tuple[Tensor, Tensor]:
    """Log of the decay, and the rate: float32 [rows, value_heads] each."""
    step = functional.softplus(a.to(torch.float32) + parameters.dt_bias)
    return -parameters.a_log.exp() * step, torch.sigmoid(b.to(torch.float32))


def _mixed(
    qkv: Tensor,
    decay: Tensor,
    rate: Tensor,
    parameters: DeltaParameters,
    conv: Tensor,
    recurrent: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """[B, L, ...] of B sequences and their states: outputs, new states."""
    value_heads, key_dim, value_dim = recurrent.shape[1:]
    keys = (qkv.shape[-1] - value_heads * value_dim) // 2
    mixed, conv = causal_conv(qkv, conv, parameters.conv_weight)
    tokens = mixed.shape[:2]
    out, recurrent = gated_delta(
        mixed[..., :keys].reshape(*tokens, -1, key_dim),
        mixed[..., keys : 2 * keys].reshape(*tokens, -1, key_dim),
        mixed[..., 2 * keys :].reshape(*tokens, value_heads, value_dim),
        *(decay, rate, recurrent),
    )
    return out, conv, recurrent


def _gated(out: Tensor, z: Tensor, parameters: DeltaParameters) -> Tensor:
    gate = z.reshape(out.shape)
    return gated_rms_norm(out, gate, parameters.norm_weight, parameters.eps).flatten(1)
