"""Rows of a stored weight as plain numbers: by table look-up on a CPU, whole matrices elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

from engine.formats import gguf_blocks
from engine.formats.blob import PLAIN_FORMATS
from engine.formats.gguf_parts import GGUF_BLOCKS
from engine.formats.nvfp4 import E2M1_VALUES, GROUP
from engine.formats.quantisation import FP8_BLOCK, MXFP4_GROUP
from engine.formats.weight import StoredWeight

# A block of 2^18 float32 weights is 1 MiB and stays in a core's own cache between look-up, scaling
# and product.
CACHE_BLOCK_WEIGHTS = 1 << 18
LARGE_BLOCK_WEIGHTS = 1 << 22


@functools.cache
def _e2m1_pairs(device: torch.device) -> Tensor:
    """int64 [256]: the two float32 values of a packed byte side by side, low nibble first.

    One 8-byte element per byte makes the look-up a plain index_select, half as many as nibbles.
    """
    values = torch.tensor(E2M1_VALUES, dtype=torch.float32)
    codes = torch.arange(256)
    pairs = torch.stack([values[codes & 15], values[codes >> 4]], dim=1)
    return pairs.view(torch.int64).reshape(256).to(device)


@functools.cache
def _e4m3_values(device: torch.device) -> Tensor:
    """float32 [256]: the value of each e4m3 code: a look-up beats torch's own conversion."""
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    return codes.view(torch.float8_e4m3fn).to(torch.float32).to(device)


def e4m3_to_float32(codes: Tensor) -> Tensor:
    """float32 of a float8_e4m3fn tensor, same shape, exact."""
    if codes.device.type != "cpu":
        return codes.to(torch.float32)
    indices = codes.contiguous().view(torch.uint8).reshape(-1).to(torch.int32)
    return torch.index_select(_e4m3_values(codes.device), 0, indices).view(codes.shape)


def dequantise_nvfp4(packed: Tensor, scale: Tensor, scale_2: Tensor, dtype: torch.dtype) -> Tensor:
    """[rows, in] of codes [rows, in / 2] and scales [rows, in / 16]; equal to formats.nvfp4's."""
    rows, half = packed.shape
    step = (e4m3_to_float32(scale) * scale_2).unsqueeze(-1)
    values = _e2m1_values(packed).view(rows, half * 2 // GROUP, GROUP)
    return values.mul_(step).view(rows, half * 2).to(dtype)


def dequantise_mxfp4(packed: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """[rows, in] of codes uint8 [rows, in / 2] and exponents uint8 [rows, in / 32].

    Exponent 255 is NaN, e means 2^(e - 127).
    """
    rows, half = packed.shape
    # As the bits of a float32: 2^-127 is subnormal there.
    bits = torch.where(scale == 0, 1 << 22, scale.to(torch.int32) << 23)
    step = torch.where(scale == 255, torch.nan, bits.view(torch.float32)).unsqueeze(-1)
    values = _e2m1_values(packed).view(rows, half * 2 // MXFP4_GROUP, MXFP4_GROUP)
    return values.mul_(step).view(rows, half * 2).to(dtype)


def _e2m1_values(packed: Tensor) -> Tensor:
    """float32 [2 n] of n packed bytes."""
    indices = packed.reshape(-1).to(torch.int32)
    return torch.index_select(_e2m1_pairs(packed.device), 0, indices).view(torch.float32)


def dequantise_fp8_block(codes: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """[rows, in] of e4m3 codes and one float32 scale per 128 x 128; row 0 starts a block."""
    rows, columns = codes.shape
    spread = scale.repeat_interleave(FP8_BLOCK, 0)[:rows].repeat_interleave(FP8_BLOCK, 1)
    return (e4m3_to_float32(codes) * spread[:, :columns]).to(dtype)


def dequantise_rows(weight: StoredWeight, start: int, stop: int, dtype: torch.dtype) -> Tensor:
    """Rows `start : stop` in `dtype`; for fp8_block, `start` is a multiple of 128."""
    parts = weight.parts
    rows = parts["weight"][start:stop]
    if weight.format in PLAIN_FORMATS:
        return rows.to(dtype)
    if weight.format == "nvfp4":
        return dequantise_nvfp4(rows, parts["scale"][start:stop], parts["scale_2"], dtype)
    if weight.format == "fp8_block":
        blocks = slice(start // FP8_BLOCK, -(-stop // FP8_BLOCK))
        return dequantise_fp8_block(rows, parts["scale"][blocks], dtype)
    if weight.format == "mxfp4":
        return dequantise_mxfp4(rows, parts["scale"][start:stop], dtype)
    if weight.format in GGUF_BLOCKS:
        values = gguf_blocks.dequantise(rows.contiguous().view(-1).numpy(), weight.format.upper())
        return torch.from_numpy(values).view(rows.shape[0], weight.shape[1]).to(dtype)
    raise ValueError(f"no dequantisation of format {weight.format}")


def dequantise(weight: StoredWeight, dtype: torch.dtype) -> Tensor:
    """The whole matrix [out, in] in `dtype`."""
    return dequantise_rows(weight, 0, weight.shape[0], dtype)


def row_blocks(weight: StoredWeight, dtype: torch.dtype, block_weights: int) -> Iterator[Tensor]:
    """The matrix in blocks of whole rows, about `block_weights` each, in `dtype`."""
    rows, columns = weight.shape
    step = max(1, block_weights // columns)
    if weight.format == "fp8_block":
        step = max(FP8_BLOCK, step // FP8_BLOCK * FP8_BLOCK)
    for start in range(0, rows, step):
        yield dequantise_rows(weight, start, min(rows, start + step), dtype)
