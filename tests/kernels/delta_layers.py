"""Random layers of the gated delta rule, and what the torch operations make of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from engine.kernels.chunk_table import ChunkRun
from engine.kernels.delta_layer import DeltaParameters
from engine.kernels.gated_delta import causal_conv, gated_delta
from engine.kernels.gpu.delta_shapes import DeltaShape
from engine.kernels.pointwise import gated_rms_norm

Inputs = tuple[Tensor, Tensor, Tensor, Tensor]
"""qkv, z, b, a"""
SMALL = DeltaShape(key_heads=2, value_heads=4, key_dim=32, value_dim=32, taps=4)
SINGLE = DeltaShape(key_heads=1, value_heads=1, key_dim=32, value_dim=16, taps=4)
PAIR = DeltaShape(key_heads=2, value_heads=2, key_dim=32, value_dim=16, taps=4)
SHAPES = {
    "two key heads, four value heads": SMALL,
    "three value heads": DeltaShape(key_heads=1, value_heads=3, key_dim=32, value_dim=16, taps=3),
    "two taps": DeltaShape(key_heads=1, value_heads=1, key_dim=32, value_dim=64, taps=2),
}


def parameters(shape: DeltaShape, seed: int = 0) -> DeltaParameters:
    random = torch.Generator().manual_seed(seed)
    return DeltaParameters(
        conv_weight=torch.randn(shape.channels, shape.taps, generator=random) * 0.5,
        a_log=torch.rand(shape.value_heads, generator=random) * 2 - 1,
        dt_bias=torch.randn(shape.value_heads, generator=random) - 2,
        norm_weight=torch.rand(shape.value_dim, generator=random) + 0.5,
        eps=1e-6,
    )


def inputs(shape: DeltaShape, rows: int, dtype: torch.dtype, seed: int = 1) -> Inputs:
    random = torch.Generator().manual_seed(seed)
    widths = shape.channels, shape.value_heads * shape.value_dim, *[shape.value_heads] * 2
    qkv, z, b, a = (torch.randn(rows, width, generator=random).to(dtype) for width in widths)
    return qkv, z, b, a


def placed(own: DeltaParameters, device: torch.device) -> DeltaParameters:
    """The same parameters on `device`."""
    tensors = {k: v.to(device) for k, v in vars(own).items() if isinstance(v, Tensor)}
    return replace(own, **tensors)


@dataclass(frozen=True)
class Pools:
    conv: Tensor
    recurrent: Tensor

    def to(self, device: torch.device) -> Pools:
        return Pools(self.conv.to(device), self.recurrent.to(device))

    def clone(self) -> Pools:
        return Pools(self.conv.clone(), self.recurrent.clone())


def pools(shape: DeltaShape, rows: int, dtype: torch.dtype, seed: int = 2) -> Pools:
    """A layer's views of a pool of two layers, as the real one has them: rows are far apart."""
    random = torch.Generator().manual_seed(seed)
    heads, dims = shape.value_heads, (shape.key_dim, shape.value_dim)
    conv = torch.randn(rows, 2, shape.channels, shape.taps - 1, generator=random).to(dtype)
    return Pools(conv[:, 1], torch.randn(rows, 2, heads, *dims, generator=random)[:, 1])


def _gates(b: Tensor, a: Tensor, own: DeltaParameters) -> tuple[Tensor, Tensor]:
    rate = functional.softplus(a.float() + own.dt_bias)
    return -own.a_log.exp() * rate, torch.sigmoid(b.float())


def by_torch(
    shape: DeltaShape, own: DeltaParameters, given: Inputs, held: Pools, run: ChunkRun
) -> Tensor:
    """The rows of one run, chunk by chunk, gated: moves `held` on."""
    decay, beta = _gates(given[2], given[3], own)
    part, row = slice(run.state, run.state + 1), run.first
    keys = shape.key_heads * shape.key_dim
    outputs = []
    for length in run.lengths:
        now = slice(row, row + length)
        mixed, held.conv[part] = causal_conv.reference(
            given[0][now].unsqueeze(0), held.conv[part], own.conv_weight
        )
        q, k, v = mixed.split([keys, keys, shape.value_heads * shape.value_dim], dim=-1)
        out, held.recurrent[part] = gated_delta.reference(
            q.unflatten(-1, (shape.key_heads, shape.key_dim)),
            k.unflatten(-1, (shape.key_heads, shape.key_dim)),
            v.unflatten(-1, (shape.value_heads, shape.value_dim)),
            decay[now].unsqueeze(0),
            beta[now].unsqueeze(0),
            held.recurrent[part],
        )
        gate = given[1][now].unflatten(-1, (shape.value_heads, shape.value_dim))
        outputs.append(gated_rms_norm.reference(out[0], gate, own.norm_weight, own.eps).flatten(1))
        row += length
    return torch.cat(outputs)


def by_definition(
    shape: DeltaShape, own: DeltaParameters, given: Inputs, held: Pools
) -> tuple[Tensor, Tensor]:
    """All rows as one sequence that starts from row 0 of `held`, in float64 and one by one:
    outputs [rows, heads * value_dim] and the state [heads, key_dim, value_dim]."""
    qkv, z, b, a = (part.double() for part in given)
    joined = torch.cat([held.conv[0].T.double(), qkv])
    taps = [joined[tap : tap + len(qkv)] * own.conv_weight[:, tap] for tap in range(shape.taps)]
    mixed = functional.silu(sum(taps, torch.zeros_like(qkv)))
    keys = shape.key_heads * shape.key_dim
    q, k, v = mixed.split([keys, keys, shape.value_heads * shape.value_dim], dim=1)
    repeats = shape.value_heads // shape.key_heads

    def unit(x: Tensor) -> Tensor:
        x = x.view(len(qkv), shape.key_heads, shape.key_dim).repeat_interleave(repeats, 1)
        return x / (x.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt()

    q, k = unit(q) * shape.key_dim**-0.5, unit(k)
    v = v.view(len(qkv), shape.value_heads, shape.value_dim)
    decay = (-own.a_log.double().exp() * functional.softplus(a + own.dt_bias)).exp()
    state, outputs = held.recurrent[0].double(), []
    for t in range(len(qkv)):
        state = state * decay[t][:, None, None]
        update = b[t].sigmoid()[:, None] * (v[t] - torch.einsum("hk,hkv->hv", k[t], state))
        state = state + k[t][:, :, None] * update[:, None, :]
        outputs.append(torch.einsum("hk,hkv->hv", q[t], state))
    out = torch.stack(outputs)
    out = out * (out.pow(2).mean(-1, keepdim=True) + own.eps).rsqrt() * own.norm_weight
    return (out.flatten(1) * functional.silu(z)), state
