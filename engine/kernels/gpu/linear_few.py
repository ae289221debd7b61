"""Products of a few rows with a stored weight: bound by reading the weight.

The weight is the left factor, sixteen rows of activations the right one, whether they are there or
not: so one row costs about as much as sixteen, and its bits do not depend on the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.formats.weight import StoredWeight
from engine.kernels.gpu.ahead import Ahead
from engine.kernels.gpu.codes import NUMBERS, NVFP4, PER_WORD
from engine.kernels.gpu.tiles import add_product

MOST_ROWS = 16


@dataclass(frozen=True)
class FewTile:
    n: int
    k: int
    warps: int
    stages: int


def tile_for(storage: str, rows: int) -> FewTile:
    """Not of the number of rows of activations: the order of summation must not depend on it."""
    if storage == "bfloat16":
        return FewTile(16, 256, 2, 4) if rows <= 4096 else FewTile(32, 256, 2, 4)
    if storage == "fp8_block":
        return FewTile(16, 128, 2, 4)
    return FewTile(16, 256, 2, 4)


@triton.jit
def linear_few_kernel(
    weights,
    scales,
    scale_2,
    bias,
    x,
    y,
    rows_x,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SCALES: tl.constexpr,
    FORMAT: tl.constexpr,
    PER: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """y [rows_x, ROWS] of x bfloat16 [rows_x, COLUMNS], rows_x at most 16."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.arange(0, 16)
    there, wanted = n < ROWS, m < rows_x
    total = tl.zeros((BLOCK_N, 16), tl.float32)
    rows = n.to(tl.int64)
    for first in range(0, COLUMNS, BLOCK_K):
        columns = first + tl.arange(0, BLOCK_K)
        mask = wanted[None, :] & (columns < COLUMNS)[:, None]
        at = m[None, :] * COLUMNS + columns[:, None]
        right = tl.load(x + at, mask=mask, other=0.0)
        total = add_product(
            total,
            right,
            weights,
            scales,
            rows,
            first,
            there,
            COLUMNS,
            SCALES,
            FORMAT,
            PER,
            BLOCK_N,
            BLOCK_K,
        )
    if FORMAT == NVFP4:
        total = total * tl.load(scale_2)
    if HAS_BIAS:
        total += tl.load(bias + n, mask=there, other=0.0).to(tl.float32)[:, None]
    here = there[:, None] & wanted[None, :]
    tl.store(y + m[None, :] * ROWS + n[:, None], total.to(y.dtype.element_ty), mask=here)


def can_read(weight: StoredWeight) -> bool:
    """Whether kernels of this package read this format and shape."""
    return weight.format in NUMBERS and weight.shape[1] % PER_WORD[weight.format] == 0


def words_of(weight: Tensor) -> Tensor:
    """What kernels read: bfloat16 as it is, of others their bytes as int32. A view."""
    if weight.dtype == torch.bfloat16:
        return weight
    return weight.view(torch.uint8).view(torch.int32)


def scale_arguments(weight: StoredWeight) -> tuple[Tensor, Tensor, int]:
    """Scales, the float32 global, and scales in a row. What a format lacks is any tensor."""
    parts = weight.parts
    none = parts["weight"]
    scale = parts.get("scale")
    if scale is None:
        return none, none, 0
    if scale.dtype != torch.float32:
        scale = scale.view(torch.uint8)
    return scale, parts.get("scale_2", none), scale.shape[1]


def linear_few(x: Tensor, weight: StoredWeight, bias: Tensor | None) -> Tensor:
    """x bfloat16 [N, in] with N at most MOST_ROWS, times weight [out, in] transposed, plus bias
    [out]: bfloat16 [N, out]. A row's bits do not depend on the other rows."""
    rows, columns = weight.shape
    out = torch.empty((x.shape[0], rows), dtype=x.dtype, device=x.device)
    scale, scale_2, in_row = scale_arguments(weight)
    tile = tile_for(weight.format, rows)
    linear_few_kernel[(triton.cdiv(rows, tile.n),)](
        words_of(weight.parts["weight"]),
        scale,
        scale_2,
        out if bias is None else bias,
        x.contiguous(),
        out,
        x.shape[0],
        ROWS=rows,
        COLUMNS=columns,
        SCALES=in_row,
        FORMAT=NUMBERS[weight.format],
        PER=PER_WORD[weight.format],
        HAS_BIAS=bias is not None,
        BLOCK_N=tile.n,
        BLOCK_K=tile.k,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return out


def _ahead(storage: str, rows: int, columns: int) -> Ahead:
    tile = tile_for(storage, rows)
    return Ahead(
        f"linear_few {storage} [{rows}, {columns}]",
        linear_few_kernel,
        {
            "weights": "*bf16" if storage == "bfloat16" else "*i32",
            "scales": "*fp32" if storage == "fp8_block" else "*u8",
            "scale_2": "*fp32",
            "bias": "*bf16",
            "x": "*bf16",
            "y": "*bf16",
            "rows_x": "i32",
        },
        {
            "ROWS": rows,
            "COLUMNS": columns,
            "SCALES": columns // {"fp8_block": 128, "nvfp4": 16, "mxfp4": 32}.get(storage, 1),
            "FORMAT": NUMBERS[storage],
            "PER": PER_WORD[storage],
            "HAS_BIAS": False,
            "BLOCK_N": tile.n,
            "BLOCK_K": tile.k,
        },
        tile.warps,
        tile.stages,
    )


AHEAD = tuple(
    _ahead(storage, rows, columns)
    for storage in ("bfloat16", "fp8_block", "nvfp4", "mxfp4")
    for rows, columns in ((12288, 2048), (2048, 4096))
)
