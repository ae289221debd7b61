"""RMS norm over a head, times silu of its gate."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.gpu.ahead import Ahead
from engine.kernels.gpu.delta_math import rms_gate

BLOCK_R = 16
WARPS = 4


@triton.jit
def gated_norm_kernel(
    x,
    gate,
    weight,
    out,
    eps,
    rows,
    gate_stride,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out [rows, HEADS, WIDTH] of x of that shape and gate [rows, gate_stride]."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.arange(0, PADDED)
    wanted = columns < WIDTH
    mask = (place < rows * HEADS)[:, None] & wanted[None, :]
    cells = place[:, None] * WIDTH + columns[None, :]
    gates = (place // HEADS)[:, None] * gate_stride + (place % HEADS)[:, None] * WIDTH
    wide = tl.load(x + cells, mask=mask, other=0.0).to(tl.float32)
    z = tl.load(gate + gates + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    scale = tl.load(weight + columns, mask=wanted, other=0.0)
    result = rms_gate(wide, z, scale, eps, WIDTH)
    tl.store(out + cells, result.to(out.dtype.element_ty), mask=mask)


def gated_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [rows, heads, width] normalised over its width, times weight float32 [width] and silu of
    gate [rows, heads * width], whose rows may have any stride: [rows, heads * width] in its dtype.
    """
    rows, heads, width = x.shape
    out = torch.empty((rows, heads * width), dtype=gate.dtype, device=gate.device)
    gated_norm_kernel[(triton.cdiv(rows * heads, BLOCK_R),)](
        x,
        gate,
        weight,
        out,
        eps,
        rows,
        gate.stride(0),
        HEADS=heads,
        WIDTH=width,
        PADDED=triton.next_power_of_2(width),
        BLOCK=BLOCK_R,
        num_warps=WARPS,
    )
    return out


AHEAD = (
    Ahead(
        "gated_norm",
        gated_norm_kernel,
        {
            "x": "*fp32",
            "gate": "*bf16",
            "weight": "*fp32",
            "out": "*bf16",
            "eps": "fp32",
            "rows": "i32",
            "gate_stride": "i32",
        },
        {"HEADS": 32, "WIDTH": 128, "PADDED": 128, "BLOCK": BLOCK_R},
        warps=WARPS,
        multiples=frozenset(("gate_stride",)),
    ),
)
