"""The operation `linear` on a GPU: which kernel computes which row.

Rows of sequences that have one token in this step go through `linear_few`, however many they are;
rows of chunks go through `linear_many`, however few. So the kernel follows from a row's own
sequence, and in neither kernel do other rows change its sum: a row's bits are the same alone and in
any company. A step that has both reads each weight twice; beside a chunk's arithmetic that is
little.

Kernels multiply bfloat16 activations. Others, and formats that no kernel reads, take the torch
reference, whose bits may depend on how many rows there are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.formats.weight import Projections, StoredWeight
from engine.kernels import linear as operations
from engine.kernels.gpu.linear_few import can_read, linear_few
from engine.kernels.gpu.linear_many import linear_many


def linear(x: Tensor, weight: StoredWeight, bias: Tensor | None, singles: int = 0) -> Tensor:
    """As engine.kernels.linear.linear."""
    if x.dtype != torch.bfloat16 or weight.format == "float32" or not can_read(weight):
        return operations.linear.reference(x, weight, bias, singles)
    out = torch.empty((len(x), weight.shape[0]), dtype=x.dtype, device=x.device)
    if singles:
        linear_few(x[:singles], weight, bias, out[:singles])
    if singles < len(x):
        linear_many(x[singles:], weight, bias, out[singles:])
    return out


def linears(x: Tensor, projections: Projections, singles: int = 0) -> tuple[Tensor, ...]:
    """As engine.kernels.linear.linears. Matrices that lie end to end are one product, whose columns
    the results are."""
    if not projections.runs:
        return operations.linears.reference(x, projections, singles)
    out: list[Tensor] = []
    for run in projections.runs:
        out += torch.split(linear(x, run.weight, run.bias, singles), list(run.rows), dim=1)
    return tuple(out)
