"""Products of a few rows with a stored weight: bound by reading the weight."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.formats.weight import StoredWeight
from engine.kernels.gpu.ahead import Ahead
from engine.kernels.gpu.codes import NUMBERS, NVFP4, PER_WORD
from engine.kernels.gpu.words import (
    BFLOAT16,
    FLOAT32,
    settle,
    tile_columns,
    tile_rows,
    word_products,
    word_scales,
)

MOST_ROWS = 8
"""With more rows arithmetic costs more than reading."""
BLOCK_ROWS = 4
BLOCK_WORDS = 256


@triton.jit
def linear_few_kernel(
    words,
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
    BLOCK_X: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """y [rows_x, ROWS] of x [rows_x, COLUMNS]; one program makes BLOCK_R columns of y."""
    width: tl.constexpr = COLUMNS // PER
    rows = tile_rows(tl.program_id(0) * BLOCK_R, BLOCK_R)
    m = tl.arange(0, BLOCK_X)[None, :, None]
    total = tl.zeros((BLOCK_R, BLOCK_X, BLOCK_W), tl.float32)
    for start in range(0, width, BLOCK_W):
        columns = tile_columns(start, BLOCK_W)
        mask = (rows < ROWS) & (columns < width)
        tile = tl.load(words + rows.to(tl.int64) * width + columns, mask=mask, other=0)
        wanted = (m < rows_x) & (columns < width)
        products = word_products(tile, x + m * COLUMNS + columns * PER, wanted, FORMAT, PER)
        if FORMAT == FLOAT32 or FORMAT == BFLOAT16:
            total += products
        else:
            total += products * word_scales(scales, rows, columns, mask, SCALES, FORMAT)
    sums = tl.sum(total, axis=2) * settle(FORMAT)
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    if FORMAT == NVFP4:
        sums = sums * tl.load(scale_2)
    if HAS_BIAS:
        sums += tl.load(bias + row, mask=row < ROWS, other=0.0).to(tl.float32)[:, None]
    row_x = tl.arange(0, BLOCK_X)
    at = row_x[None, :] * ROWS + row[:, None]
    here = (row_x[None, :] < rows_x) & (row[:, None] < ROWS)
    tl.store(y + at, sums.to(y.dtype.element_ty), mask=here)


def can_read(weight: StoredWeight) -> bool:
    """Whether kernels of this package read this format and shape."""
    return weight.format in NUMBERS and weight.shape[1] % PER_WORD[weight.format] == 0


def words_of(weight: Tensor) -> Tensor:
    """The stored bytes as int32: a view."""
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
    """x [N, in] with N at most MOST_ROWS, times weight [out, in] transposed, plus bias [out]:
    [N, out] in x's dtype. A row's bits do not depend on the other rows."""
    rows, columns = weight.shape
    out = torch.empty((x.shape[0], rows), dtype=x.dtype, device=x.device)
    scale, scale_2, in_row = scale_arguments(weight)
    linear_few_kernel[(triton.cdiv(rows, BLOCK_ROWS),)](
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
        BLOCK_X=triton.next_power_of_2(x.shape[0]),
        BLOCK_R=BLOCK_ROWS,
        BLOCK_W=BLOCK_WORDS,
        num_warps=4,
    )
    return out


def _ahead(storage: str, rows: int, columns: int, rows_x: int) -> Ahead:
    scale = "*fp32" if storage == "fp8_block" else "*u8"
    return Ahead(
        f"linear_few {storage} [{rows}, {columns}] M={rows_x}",
        linear_few_kernel,
        {
            "words": "*i32",
            "scales": scale,
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
            "BLOCK_X": rows_x,
            "BLOCK_R": BLOCK_ROWS,
            "BLOCK_W": BLOCK_WORDS,
        },
    )


AHEAD = tuple(
    _ahead(storage, rows, columns, rows_x)
    for storage in ("bfloat16", "fp8_block", "nvfp4", "mxfp4")
    for rows, columns in ((9216, 2048), (2048, 4096))
    for rows_x in (1, 2, 4, 8)
)
