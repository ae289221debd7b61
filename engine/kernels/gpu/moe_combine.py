"""The sum of a token's routed experts, in the order of its routes."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.gpu.ahead import Ahead

_COLUMNS = 1024


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


AHEAD = (
    Ahead(
        "combine 8 of 2048",
        combine_kernel,
        {"rows": "*fp32", "weights": "*fp32", "y": "*bf16"},
        {"HIDDEN": 2048, "ROUTES": 8, "BLOCK": _COLUMNS},
        fusion=False,
    ),
)
