"""Products of many rows with a stored weight, on tensor cores."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.formats.weight import StoredWeight
from engine.kernels.gpu.ahead import ARCHITECTURES, Ahead
from engine.kernels.gpu.architecture import architecture
from engine.kernels.gpu.codes import NUMBERS, NVFP4, PER_WORD
from engine.kernels.gpu.linear_few import scale_arguments, words_of
from engine.kernels.gpu.tiles import add_product


@dataclass(frozen=True)
class Tile:
    m: int
    n: int
    k: int
    warps: int
    stages: int

    @property
    def constants(self) -> dict[str, int]:
        return {"BLOCK_M": self.m, "BLOCK_N": self.n, "BLOCK_K": self.k}


def tile_for(storage: str, arch: int) -> Tile:
    """Not of the number of rows: the order of summation must not depend on it."""
    # fp8_block's scales are those of 128 columns; a tile of more would need two.
    if arch in (80, 90):
        return Tile(128, 128, 64, 8 if storage != "bfloat16" else 4, 4)
    return Tile(64, 128, 64, 4, 3)


@triton.jit(do_not_specialize=["rows_x"])
def linear_many_kernel(
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
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    """y [rows_x, ROWS] of x bfloat16 [rows_x, COLUMNS]. TOGETHER tiles of rows run side by side
    over the same weights, which then come from the cache."""
    program = tl.program_id(0)
    tiles_n: tl.constexpr = (ROWS + BLOCK_N - 1) // BLOCK_N
    tiles_m = tl.cdiv(rows_x, BLOCK_M)
    group = program // (TOGETHER * tiles_n)
    height = tl.minimum(tiles_m - group * TOGETHER, TOGETHER)
    within = program % (TOGETHER * tiles_n)
    m = (group * TOGETHER + within % height) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = within // height * BLOCK_N + tl.arange(0, BLOCK_N)
    wanted, there = m < rows_x, n < ROWS
    total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    x_rows = x + m.to(tl.int64)[None, :] * COLUMNS
    for first in range(0, COLUMNS, BLOCK_K):
        columns = first + tl.arange(0, BLOCK_K)
        mask = wanted[None, :] & (columns < COLUMNS)[:, None]
        right = tl.load(x_rows + columns[:, None], mask=mask, other=0.0)
        total = add_product(
            total,
            right,
            weights,
            scales,
            n,
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
    at = m.to(tl.int64)[None, :] * ROWS + n[:, None]
    tl.store(y + at, total.to(y.dtype.element_ty), mask=wanted[None, :] & there[:, None])


def linear_many(
    x: Tensor, weight: StoredWeight, bias: Tensor | None, out: Tensor | None = None
) -> Tensor:
    """x bfloat16 [N, in] times weight [out, in] transposed, plus bias [out]: bfloat16 [N, out],
    written to `out` if given.

    The weight must not be float32. A row's bits do not depend on the other rows."""
    rows, columns = weight.shape
    if out is None:
        out = torch.empty((x.shape[0], rows), dtype=x.dtype, device=x.device)
    scale, scale_2, in_row = scale_arguments(weight)
    tile = tile_for(weight.format, architecture(x.device))
    tiles = triton.cdiv(x.shape[0], tile.m) * triton.cdiv(rows, tile.n)
    linear_many_kernel[(tiles,)](
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
        TOGETHER=8,
        **tile.constants,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return out


def _ahead(arch: int) -> tuple[Ahead, ...]:
    """Cases with the tiles of one architecture."""
    cases = []
    for storage in ("bfloat16", "fp8_block", "nvfp4", "mxfp4"):
        tile = tile_for(storage, arch)
        columns = 2048
        cases.append(
            Ahead(
                f"linear_many {storage} [4096, {columns}]",
                linear_many_kernel,
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
                    "ROWS": 4096,
                    "COLUMNS": columns,
                    "SCALES": columns
                    // {"fp8_block": 128, "nvfp4": 16, "mxfp4": 32}.get(storage, 1),
                    "FORMAT": NUMBERS[storage],
                    "PER": PER_WORD[storage],
                    "HAS_BIAS": False,
                    "TOGETHER": 8,
                    **tile.constants,
                },
                tile.warps,
                tile.stages,
                architectures=(arch,),
            )
        )
    return tuple(cases)


AHEAD = tuple(case for arch in ARCHITECTURES for case in _ahead(arch))
