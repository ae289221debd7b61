"""Full attention with grouped queries over paged keys and values."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.formats.weight import Projections
from engine.kernels.attention import (
    attention_block,
    norm_rotate_and_store,
    paged_attention,
    rotate_and_store,
)
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
    norms: tuple[RmsNorm, RmsNorm] | None = None
    """Of each head of q and of k, before the rotation; of one epsilon."""

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """x [N, hidden] of all sequences of the step: [N, hidden]."""
        spec = self.spec
        keys, values = step.kv.layer(self.layer)
        places = step.cos, step.sin, keys, values, step.slots
        scale, sequences = spec.head_dim**-0.5, step.sequences
        if self.norms is None and not spec.output_gate:
            return attention_block(
                *(x, self.qkv, self.o, *places, sequences, scale, step.singles, step.attention)
            )
        q, k, v = linears(x, self.qkv, step.singles)
        q = q.view(len(x), spec.heads, -1)
        gate = None
        if spec.output_gate:
            # Each head's rows of q_proj are its query, then its gate.
            q, gate = q.chunk(2, dim=-1)
        k = k.view(len(x), spec.kv_heads, spec.head_dim)
        v = v.view(len(x), spec.kv_heads, spec.head_dim)
        if self.norms is None:
            q = rotate_and_store(q, k, v, *places)
        else:
            q_norm, k_norm = self.norms
            weights = q_norm.weight, k_norm.weight
            q = norm_rotate_and_store(q, k, v, weights, q_norm.eps, *places)
        out = paged_attention(q, keys, values, sequences, scale, gate, step.attention)
        return linears(out.flatten(1), self.o, step.singles)[0]
