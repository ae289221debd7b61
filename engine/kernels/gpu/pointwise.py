"""Norms and products of single rows on a GPU, as engine.kernels.pointwise defines them.

Everything is computed in float32. The order of a row's sum follows from its width alone. Row counts
are not specialised on: no number of tokens costs a compile.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.gpu.ahead import Ahead

_TILE = 2048
"""Elements of a block: a row, or as many short ones (heads) as fit."""
_COLUMNS = 1024
"""Of a block, in operations without sums."""


@triton.jit(do_not_specialize=["rows", "inner"])
def _norm_rows(
    x,
    added,
    gate,
    weight,
    total,
    out,
    rows,
    inner,
    x_outer,
    x_inner,
    added_outer,
    added_inner,
    gate_outer,
    gate_inner,
    eps,
    D: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ADD: tl.constexpr,
    GATE: tl.constexpr,
):
    """Row r of x begins at r // inner * x_outer + r % inner * x_inner; total and out are dense."""
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    d = tl.arange(0, BLOCK_D)
    inside = (row < rows)[:, None] & (d < D)[None, :]
    outer = (row // inner)[:, None].to(tl.int64)
    within = (row % inner)[:, None]
    dense = row[:, None].to(tl.int64) * D + d[None, :]
    at = x + outer * x_outer + within * x_inner + d[None, :]
    wide = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        at = added + outer * added_outer + within * added_inner + d[None, :]
        wide += tl.load(at, mask=inside, other=0.0).to(tl.float32)
        # The residual is what the next layer adds to: the norm is of it as it is stored.
        rounded = wide.to(total.dtype.element_ty)
        tl.store(total + dense, rounded, mask=inside)
        wide = rounded.to(tl.float32)
    mean = tl.sum(wide * wide, 1) / D
    factor = tl.load(weight + d, mask=d < D, other=0.0)
    scaled = wide * tl.rsqrt(mean + eps)[:, None] * factor[None, :]
    if GATE:
        at = gate + outer * gate_outer + within * gate_inner + d[None, :]
        opened = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        scaled *= opened * tl.sigmoid(opened)
    tl.store(out + dense, scaled, mask=inside)


@triton.jit
def _swiglu_rows(gate, up, out, gate_row, up_row, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    opened = tl.load(gate + row * gate_row + d, mask=d < WIDTH, other=0.0).to(tl.float32)
    factor = tl.load(up + row * up_row + d, mask=d < WIDTH, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + d, opened * tl.sigmoid(opened) * factor, mask=d < WIDTH)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As engine.kernels.pointwise.rms_norm."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _norm(x, weight, eps, out)
    return out


def add_rms_norm(x: Tensor, added: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """As engine.kernels.pointwise.add_rms_norm."""
    total = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    out = torch.empty_like(total)
    _norm(x, weight, eps, out, added=added, total=total)
    return total, out


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As engine.kernels.pointwise.gated_rms_norm."""
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    _norm(x, weight, eps, out, gate=gate)
    return out


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """As engine.kernels.pointwise.swiglu."""
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    gate, up = _matrix(gate), _matrix(up)
    rows, width = gate.shape
    if rows:
        _swiglu_rows[(rows, triton.cdiv(width, _COLUMNS))](
            gate, up, out, gate.stride(0), up.stride(0), width, _COLUMNS
        )
    return out


def _norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    out: Tensor,
    added: Tensor | None = None,
    total: Tensor | None = None,
    gate: Tensor | None = None,
) -> None:
    dim = x.shape[-1]
    inner = x.shape[-2] if x.dim() > 2 else 1
    rows = x.numel() // dim
    if rows == 0:
        return
    parts = [x if part is None else part for part in (x, added, gate)]
    heads = [part.reshape(-1, inner, dim) for part in parts]
    heads = [part if part.stride(2) == 1 else part.contiguous() for part in heads]
    constants = _norm_constants(dim, added is not None, gate is not None)
    _norm_rows[(triton.cdiv(rows, constants["BLOCK_ROWS"]),)](
        *(*heads, weight, out if total is None else total, out, rows, inner),
        *(stride for part in heads for stride in part.stride()[:2]),
        eps,
        **constants,
    )


def _norm_constants(dim: int, add: bool, gate: bool) -> dict[str, int]:
    block = triton.next_power_of_2(dim)
    return {
        "D": dim,
        "BLOCK_ROWS": max(1, _TILE // block),
        "BLOCK_D": block,
        "ADD": add,
        "GATE": gate,
    }


def _matrix(x: Tensor) -> Tensor:
    """[rows, width] with a row's elements side by side."""
    flat = x.reshape(-1, x.shape[-1])
    return flat if flat.stride(1) == 1 else flat.contiguous()


def _norm_ahead(name: str, dim: int, add: bool = False, gate: bool = False) -> Ahead:
    x = "*fp32" if gate else "*bf16"
    pointers = {"x": x, "added": "*bf16", "gate": "*bf16", "weight": "*fp32", "total": "*bf16"}
    strides = [f"{part}_{way}" for part in ("x", "added", "gate") for way in ("outer", "inner")]
    return Ahead(
        name,
        _norm_rows,
        {
            **(pointers if add else pointers | {"added": x}),
            "out": "*bf16",
            **dict.fromkeys(("rows", "inner", *strides), "i32"),
            "eps": "fp32",
        },
        _norm_constants(dim, add, gate),
        multiples=frozenset(strides),
    )


def _rows_ahead(name: str, kernel: object, pointers: str, strides: str, width: int) -> Ahead:
    return Ahead(
        name,
        kernel,
        dict.fromkeys(pointers.split(), "*bf16") | dict.fromkeys(strides.split(), "i32"),
        {"WIDTH": width, "BLOCK": _COLUMNS},
        multiples=frozenset(strides.split()) - {"gate_row"},
    )


AHEAD = (
    _norm_ahead("rms_norm 2048", 2048),
    _norm_ahead("rms_norm 256", 256),
    _norm_ahead("add_rms_norm 2048", 2048, add=True),
    _norm_ahead("gated_rms_norm 128", 128, gate=True),
    _norm_ahead("rms_norm 576", 576),
    _norm_ahead("add_rms_norm 576", 576, add=True),
    _rows_ahead("swiglu 512", _swiglu_rows, "gate up out", "gate_row up_row", 512),
)
