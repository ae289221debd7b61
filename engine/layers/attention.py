"""Full attention with grouped queries over paged keys and values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.formats.weight import Projections
from engine.kernels.attention import attention_block, paged_attention, rotate_and_store
from engine.kernels.linear import linears
from engine.layers.linear import RmsNorm
from engine.layers.step import Step
from engine.models.spec import AttentionSpec


@dataclass(frozen=True)
class Attention:
    layer: int
    spec: AttentionSpec
    qkv: Projections
    o: Projections
    """One matrix."""
    q_norm: RmsNorm | None = None
    k_norm: RmsNorm | None = None

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """x [N, hidden] of all sequences of the step: [N, hidden]."""
        spec = self.spec
        keys, values = step.kv.layer(self.layer)
        scale = spec.head_dim**-0.5
        if self.q_norm is None and not spec.output_gate:
            where = step.cos, step.sin, keys, values, step.slots, step.batch.sequences
            return attention_block(x, self.qkv, self.o, *where, scale)
        q, k, v = linears(x, self.qkv)
        q = q.view(len(x), spec.heads, -1)
        gate = None
        if spec.output_gate:
            # Each head's rows of q_proj are its query, then its gate.
            q, gate = q.chunk(2, dim=-1)
        k = k.view(len(x), spec.kv_heads, spec.head_dim)
        v = v.view(len(x), spec.kv_heads, spec.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q = rotate_and_store(q, k, v, step.cos, step.sin, keys, values, step.slots)
        out = paged_attention(q.to(keys.dtype), keys, values, step.batch.sequences, scale)
        out = out.to(x.dtype)
        if gate is not None:
            out = (out * torch.sigmoid(gate.to(torch.float32))).to(x.dtype)
        return linears(out.flatten(1), self.o)[0]
