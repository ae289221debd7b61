"""Linear attention by the gated delta rule, with its convolution, decay, rate and output gate."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from engine.formats.weight import Projections
from engine.kernels.gated_delta import causal_conv, gated_delta
from engine.kernels.linear import linears
from engine.kernels.pointwise import gated_rms_norm
from engine.layers.linear import Linear
from engine.layers.step import Step
from engine.models.spec import GatedDeltaSpec


@dataclass(frozen=True)
class GatedDelta:
    layer: int
    spec: GatedDeltaSpec
    into: Projections
    """qkv (rows: all heads' queries, all heads' keys, all heads' values), z, b and a."""
    out: Linear
    conv_weight: Tensor
    """float32 [channels, conv_kernel]"""
    a_log: Tensor
    """float32 [value_heads]"""
    dt_bias: Tensor
    """float32 [value_heads]"""
    norm_weight: Tensor
    """float32 [value_dim]"""
    eps: float

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """x [N, hidden] of all sequences of the step: [N, hidden]. Moves their states on."""
        if step.states is None:
            raise ValueError(f"layer {self.layer} is recurrent and the step has no states")
        spec = self.spec
        qkv, z, b, a = linears(x, self.into)
        beta = torch.sigmoid(b.to(torch.float32))
        rate = functional.softplus(a.to(torch.float32) + self.dt_bias)
        decay = -self.a_log.exp() * rate
        out = qkv.new_empty(len(x), spec.value_heads, spec.value_dim, dtype=torch.float32)
        conv, recurrent = step.states.layer(self.layer)
        if len(step.single_rows):
            rows, states = step.single_rows, step.single_states
            mixed, conv[states], recurrent[states] = self._mix(
                qkv[rows].unsqueeze(1),
                decay[rows].unsqueeze(1),
                beta[rows].unsqueeze(1),
                conv[states],
                recurrent[states],
            )
            out[rows] = mixed.squeeze(1)
        for seq in step.chunks:
            part, state = slice(seq.start, seq.start + seq.length), slice(seq.state, seq.state + 1)
            mixed, conv[state], recurrent[state] = self._mix(
                qkv[part].unsqueeze(0),
                decay[part].unsqueeze(0),
                beta[part].unsqueeze(0),
                conv[state],
                recurrent[state],
            )
            out[part] = mixed.squeeze(0)
        gate = z.view(len(x), spec.value_heads, spec.value_dim)
        return self.out(gated_rms_norm(out, gate, self.norm_weight, self.eps).flatten(1))

    def _mix(
        self, qkv: Tensor, decay: Tensor, beta: Tensor, conv: Tensor, recurrent: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """[B, L, ...] of B sequences and their states: outputs, new states."""
        spec = self.spec
        mixed, conv = causal_conv(qkv, conv, self.conv_weight)
        tokens, keys = mixed.shape[:2], spec.key_heads * spec.key_dim
        out, recurrent = gated_delta(
            mixed[..., :keys].reshape(*tokens, spec.key_heads, spec.key_dim),
            mixed[..., keys : 2 * keys].reshape(*tokens, spec.key_heads, spec.key_dim),
            mixed[..., 2 * keys :].reshape(*tokens, spec.value_heads, spec.value_dim),
            decay,
            beta,
            recurrent,
        )
        return out, conv, recurrent
