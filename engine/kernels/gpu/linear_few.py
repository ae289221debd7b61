"""Products of a few rows with a stored weight: bound by reading the weight.

A bfloat16 weight is the left factor on tensor cores, sixteen rows of activations the right one,
whether they are there or not: one row costs about as much as sixteen, and more take turns. Codes
are multiplied as they are decoded, a row of activations at a time: on tensor cores decoding would
take longer than reading. Either way a row's bits do not depend on the other rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.formats.weight import StoredWeight
from engine.kernels.gpu.ahead import Ahead
from engine.kernels.gpu.codes import FACTOR_TYPE, NUMBERS, NVFP4, PER_WORD
from engine.kernels.gpu.words import PAIR, row_sums, scale_rows, tile_rows

TOGETHER = 16
"""Rows of activations that meet a bfloat16 weight at once."""
BLOCK_R, BLOCK_W = 8, 256
"""Of codes: rows and words of a program."""


@dataclass(frozen=True)
class FewTile:
    n: int
    k: int
    warps: int
    stages: int


def tile_for(rows: int) -> FewTile:
    """Not of the number of rows of activations: the order of summation must not depend on it."""
    return FewTile(16, 512, 2, 4) if rows <= 4096 else FewTile(32, 256, 4, 4)


@triton.jit
def linear_codes_kernel(
    words,
    scales,
    scale_2,
    bias,
    x,
    y,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SCALES: tl.constexpr,
    FORMAT: tl.constexpr,
    PER: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """One row of y [., ROWS], BLOCK_R of its columns, of a row of x [., COLUMNS]."""
    m = tl.program_id(0)
    first = tl.program_id(1) * BLOCK_R
    rows = tile_rows(first, BLOCK_R)
    wide = rows.to(tl.int64)
    sums = row_sums(
        *(words, scales, x + m * COLUMNS, wide, scale_rows(wide, FORMAT), rows < ROWS),
        *(COLUMNS // PER, SCALES, FORMAT, PER, BLOCK_R, BLOCK_W),
    )
    row = first + tl.arange(0, BLOCK_R)
    if FORMAT == NVFP4:
        sums = sums * tl.load(scale_2)
    if HAS_BIAS:
        sums += tl.load(bias + row, mask=row < ROWS, other=0.0).to(tl.float32)
    tl.store(y + m * ROWS + row, sums.to(y.dtype.element_ty), mask=row < ROWS)


@triton.jit(do_not_specialize=["rows_x"])
def linear_few_kernel(
    weights,
    bias,
    x,
    y,
    rows_x,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """y [rows_x, ROWS] of x [rows_x, COLUMNS], all bfloat16; a program takes 16 rows."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * 16 + tl.arange(0, 16)
    there, wanted = n < ROWS, m < rows_x
    total = tl.zeros((BLOCK_N, 16), tl.float32)
    row = weights + n.to(tl.int64)[:, None] * COLUMNS
    for first in range(0, COLUMNS, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        left = tl.load(row + k[None, :], mask=there[:, None] & (k < COLUMNS)[None, :], other=0.0)
        mask = wanted[None, :] & (k < COLUMNS)[:, None]
        right = tl.load(x + m[None, :] * COLUMNS + k[:, None], mask=mask, other=0.0)
        total = tl.dot(left.to(FACTOR_TYPE), right.to(FACTOR_TYPE), total)
    if HAS_BIAS:
        total += tl.load(bias + n, mask=there, other=0.0).to(tl.float32)[:, None]
    here = there[:, None] & wanted[None, :]
    tl.store(y + m[None, :] * ROWS + n[:, None], total.to(y.dtype.element_ty), mask=here)


def can_read(weight: StoredWeight) -> bool:
    """Whether kernels of this package read this format and shape."""
    return weight.format in NUMBERS and weight.shape[1] % (PAIR * PER_WORD[weight.format]) == 0


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


def linear_few(
    x: Tensor, weight: StoredWeight, bias: Tensor | None, out: Tensor | None = None
) -> Tensor:
    """x bfloat16 [N, in] times weight [out, in] transposed, plus bias [out]: bfloat16 [N, out],
    written to `out` if given. A row's bits do not depend on the other rows."""
    rows, columns = weight.shape
    if out is None:
        out = torch.empty((x.shape[0], rows), dtype=x.dtype, device=x.device)
    words = words_of(weight.parts["weight"])
    fixed = {"ROWS": rows, "COLUMNS": columns, "HAS_BIAS": bias is not None}
    bias = out if bias is None else bias
    if weight.format == "bfloat16":
        tile = tile_for(rows)
        linear_few_kernel[(triton.cdiv(rows, tile.n), triton.cdiv(x.shape[0], TOGETHER))](
            words,
            bias,
            x.contiguous(),
            out,
            x.shape[0],
            **fixed,
            BLOCK_N=tile.n,
            BLOCK_K=tile.k,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
        return out
    scale, scale_2, in_row = scale_arguments(weight)
    linear_codes_kernel[(x.shape[0], triton.cdiv(rows, BLOCK_R))](
        words,
        scale,
        scale_2,
        bias,
        x.contiguous(),
        out,
        **fixed,
        SCALES=in_row,
        FORMAT=NUMBERS[weight.format],
        PER=PER_WORD[weight.format],
        BLOCK_R=BLOCK_R,
        BLOCK_W=BLOCK_W,
        num_warps=4,
    )
    return out


def _ahead(storage: str, rows: int, columns: int) -> Ahead:
    types = {"bias": "*bf16", "x": "*bf16", "y": "*bf16"}
    fixed = {"ROWS": rows, "COLUMNS": columns, "HAS_BIAS": False}
    name = f"linear_few {storage} [{rows}, {columns}]"
    if storage == "bfloat16":
        tile = tile_for(rows)
        return Ahead(
            name,
            linear_few_kernel,
            {"weights": "*bf16", **types, "rows_x": "i32"},
            {**fixed, "BLOCK_N": tile.n, "BLOCK_K": tile.k},
            tile.warps,
            tile.stages,
        )
    scale = "*fp32" if storage == "fp8_block" else "*u8"
    return Ahead(
        name,
        linear_codes_kernel,
        {"words": "*i32", "scales": scale, "scale_2": "*fp32", **types},
        {
            **fixed,
            "SCALES": columns // {"fp8_block": 128, "nvfp4": 16, "mxfp4": 32}[storage],
            "FORMAT": NUMBERS[storage],
            "PER": PER_WORD[storage],
            "BLOCK_R": BLOCK_R,
            "BLOCK_W": BLOCK_W,
        },
    )


AHEAD = tuple(
    _ahead(storage, rows, columns)
    for storage in ("bfloat16", "fp8_block", "nvfp4", "mxfp4")
    for rows, columns in ((12288, 2048), (2048, 4096))
)
