"""The sum of a token's routed experts, in the order of its routes: alone, or with all that follows
in the residual up to the next norm."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.gpu.ahead import Ahead
from engine.kernels.moe_layer import MoeSum

_COLUMNS = 1024
_NORM_WARPS = 8
_STAGED_BYTES = 64 * 1024


@triton.jit
def combine_kernel(
    rows, weights, y, HIDDEN: tl.constexpr, ROUTES: tl.constexpr, BLOCK: tl.constexpr
):
    """y [tokens, HIDDEN]: a token's rows times their weights, added in the order of its routes."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < HIDDEN
    total = tl.zeros((BLOCK,), tl.float32)
    for route in tl.static_range(ROUTES):
        at = token * ROUTES + route
        weight = tl.load(weights + at)
        total += tl.load(rows + at * HIDDEN + columns, mask=mask, other=0.0) * weight
    tl.store(y + token * HIDDEN + columns, total.to(y.dtype.element_ty), mask=mask)


@triton.jit
def sum_norm_kernel(
    x,
    rows,
    weights,
    shared,
    gate,
    factor,
    total,
    out,
    eps,
    HIDDEN: tl.constexpr,
    ROUTES: tl.constexpr,
    SHARED: tl.constexpr,
    GATE: tl.constexpr,
    STAGES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """total [tokens, HIDDEN] = x + routes + sigmoid(gate) * shared; out is its norm."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < HIDDEN
    here = token * HIDDEN + columns
    wide = tl.load(x + here, mask=mask, other=0.0).to(tl.float32)
    scale = tl.load(factor + columns, mask=mask, other=0.0)
    if SHARED:
        beside = tl.load(shared + here, mask=mask, other=0.0).to(tl.float32)
        if GATE:
            beside *= tl.sigmoid(tl.load(gate + token).to(tl.float32))
    added = tl.zeros((BLOCK,), tl.float32)
    # Through shared memory, STAGES routes on their way at once: with registers alone the assembler
    # has one after another wait for memory.
    for route in tl.range(0, ROUTES, num_stages=STAGES):
        at = token * ROUTES + route
        weight = tl.load(weights + at)
        added += tl.load(rows + at * HIDDEN + columns, mask=mask, other=0.0) * weight
    if SHARED:
        added += beside
    wide += added
    # The residual is what the next layer adds to: the norm is of it as it is stored.
    rounded = wide.to(total.dtype.element_ty)
    tl.store(total + here, rounded, mask=mask)
    wide = rounded.to(tl.float32)
    mean = tl.sum(wide * wide, 0) / HIDDEN
    tl.store(out + here, wide * tl.rsqrt(mean + eps) * scale, mask=mask)


def combine(rows: Tensor, weights: Tensor, dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
    """rows float32 [T, k, H] weighed by float32 [T, k] and added in the order of the routes: [T, H]
    in `dtype`, written to `out` if given.

    Products and sums are rounded one by one, as in engine.kernels.moe.
    """
    tokens, routes, hidden = rows.shape
    if out is None:
        out = torch.empty((tokens, hidden), dtype=dtype, device=rows.device)
    block = min(_COLUMNS, triton.next_power_of_2(hidden))
    combine_kernel[(tokens, triton.cdiv(hidden, block))](
        *(rows, weights, out),
        HIDDEN=hidden,
        ROUTES=routes,
        BLOCK=block,
        enable_fp_fusion=False,
    )
    return out


def add_moe_norm(x: Tensor, added: MoeSum, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """As engine.kernels.moe_layer.add_moe_norm."""
    tokens, routes, hidden = added.rows.shape
    total = torch.empty((tokens, hidden), dtype=x.dtype, device=x.device)
    out = torch.empty_like(total)
    if tokens == 0:
        return total, out
    # What is missing is not read.
    shared = x if added.shared is None else added.shared
    gate = x if added.gate is None else added.gate
    parts = [each.contiguous() for each in (x, added.rows, added.weights, shared, gate)]
    sum_norm_kernel[(tokens,)](
        *(*parts, weight, total, out, eps),
        **_sum_norm_constants(hidden, routes, added.shared is not None, added.gate is not None),
        num_warps=_NORM_WARPS,
        enable_fp_fusion=False,
    )
    return total, out


def _sum_norm_constants(hidden: int, routes: int, shared: bool, gate: bool) -> dict[str, int]:
    block = triton.next_power_of_2(hidden)
    return {
        "HIDDEN": hidden,
        "ROUTES": routes,
        "SHARED": shared,
        "GATE": gate,
        "STAGES": max(1, min(routes, _STAGED_BYTES // (4 * block))),
        "BLOCK": block,
    }


def _sum_norm_ahead(model: str, hidden: int, routes: int, shared: bool) -> Ahead:
    types = {"x": "*bf16", "rows": "*fp32", "weights": "*fp32", "shared": "*bf16", "gate": "*bf16"}
    return Ahead(
        f"sum and norm {model}",
        sum_norm_kernel,
        {**types, "factor": "*fp32", "total": "*bf16", "out": "*bf16", "eps": "fp32"},
        _sum_norm_constants(hidden, routes, shared, shared),
        warps=_NORM_WARPS,
        fusion=False,
    )


AHEAD = (
    Ahead(
        "combine 8 of 2048",
        combine_kernel,
        {"rows": "*fp32", "weights": "*fp32", "y": "*bf16"},
        {"HIDDEN": 2048, "ROUTES": 8, "BLOCK": _COLUMNS},
        fusion=False,
    ),
    _sum_norm_ahead("qwen3.6-35b-a3b", 2048, 8, True),
    _sum_norm_ahead("demo", 576, 4, False),
)
