"""Linear attention by the gated delta rule, with its convolution, decay, rate and output gate."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.formats.weight import Projections
from engine.kernels.delta_layer import DeltaParameters, delta_decode, delta_prefill
from engine.kernels.linear import linears
from engine.layers.linear import Linear
from engine.layers.step import Step


@dataclass(frozen=True)
class GatedDelta:
    layer: int
    into: Projections
    """qkv (rows: all heads' queries, all heads' keys, all heads' values), z, b and a."""
    parameters: DeltaParameters
    out: Linear

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """x [N, hidden] of all sequences of the step: [N, hidden]. Moves their states on."""
        if step.states is None:
            raise ValueError(f"layer {self.layer} is recurrent and the step has no states")
        singles, own = step.singles, self.parameters
        qkv, z, b, a = linears(x, self.into, singles)
        conv, recurrent = step.states.pool.layer(self.layer)
        parts = []
        if singles:
            rows = qkv[:singles], z[:singles], b[:singles], a[:singles]
            parts.append(delta_decode(*rows, own, conv, recurrent, step.states.singles))
        if singles < len(x):
            rows = qkv[singles:], z[singles:], b[singles:], a[singles:]
            parts.append(delta_prefill(*rows, own, conv, recurrent, step.states.chunks))
        mixed = parts[0] if len(parts) == 1 else torch.cat(parts)
        return self.out(mixed, singles)
