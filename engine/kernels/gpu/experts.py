"""Routed experts on a GPU: single tokens by one kernel, chunks by another.

As in engine.kernels.gpu.linear the kernel follows from a row's own sequence. Either way each route
has a row of its own, which depends on its token and its expert alone, and `moe_combine` adds a
token's rows in their order: an output depends neither on company nor on slots, nor on how a layer
was cut into groups of experts.

Kernels take bfloat16 activations; prompts with float32 experts and whatever no kernel reads take
the torch reference. Nothing is read back from the device, but by the reference.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.formats.blob import BlobSpec
from engine.kernels import moe as operations
from engine.kernels.gpu.moe_combine import combine
from engine.kernels.gpu.moe_decode import can_read_blobs, decode_rows
from engine.kernels.gpu.moe_prefill import prefill_rows


def moe_experts(
    bank: Tensor,
    spec: BlobSpec,
    x: Tensor,
    slots: Tensor,
    weights: Tensor | None,
    singles: int = 0,
    experts: int = 0,
) -> Tensor:
    """As engine.kernels.moe.moe_experts."""
    rows = torch.empty((*slots.shape, x.shape[1]), dtype=torch.float32, device=x.device)
    moe_expert_rows(bank, spec, x, slots, rows, singles, experts)
    return rows if weights is None else combine(rows, weights, x.dtype)


def moe_expert_rows(
    bank: Tensor,
    spec: BlobSpec,
    x: Tensor,
    slots: Tensor,
    rows: Tensor,
    singles: int = 0,
    experts: int = 0,
) -> None:
    """As engine.kernels.moe.moe_expert_rows."""
    if x.dtype != torch.bfloat16 or not can_read_blobs(spec):
        operations.moe_expert_rows.reference(bank, spec, x, slots, rows, singles)
        return
    if singles:
        decode_rows(bank, spec, x[:singles], slots[:singles], rows[:singles])
    if singles < len(x):
        chunk = x[singles:], slots[singles:], rows[singles:]
        if "float32" in (spec.gate_up_format, spec.down_format):
            operations.moe_expert_rows.reference(bank, spec, *chunk)
        else:
            prefill_rows(bank, spec, *chunk, experts)


def moe_combine(rows: Tensor, weights: Tensor | None, dtype: torch.dtype) -> Tensor:
    """As engine.kernels.moe.moe_combine."""
    return rows if weights is None else combine(rows, weights.to(torch.float32), dtype)
