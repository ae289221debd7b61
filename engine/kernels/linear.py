"""Products with stored weights, and rows of an embedding. One copy of each weight, as stored.

The first `singles` rows of a product belong to sequences of one token. A GPU computes them with
other kernels than a prompt's; engine.kernels.gpu.linear says what follows from that.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from engine.formats.blob import PLAIN_FORMATS
from engine.formats.gguf_parts import GGUF_BLOCKS
from engine.formats.quantisation import FP8_BLOCK
from engine.formats.weight import Projections, StoredWeight
from engine.kernels.dequantise import (
    CACHE_BLOCK_WEIGHTS,
    LARGE_BLOCK_WEIGHTS,
    dequantise,
    dequantise_mxfp4,
    dequantise_nvfp4,
    dequantise_rows,
    e4m3_to_float32,
    row_blocks,
)
from engine.kernels.pointwise import swiglu
from engine.kernels.registry import operation

_CUDA = "engine.kernels.gpu.linear"
_FEW_ROWS = 16
"""Up to here a product is bound by reading the weight, not by arithmetic."""


@operation("linear", cuda=_CUDA)
def linear(
    x: Tensor,
    weight: StoredWeight,
    bias: Tensor | None,
    singles: int = 0,  # noqa: ARG001, for a GPU
) -> Tensor:
    """x [N, in] times weight [out, in] transposed, plus bias [out]: [N, out] in x's dtype."""
    if weight.format in PLAIN_FORMATS:
        return functional.linear(x, weight.parts["weight"].to(x.dtype), bias)
    if x.device.type != "cpu":
        return functional.linear(x, dequantise(weight, x.dtype), bias)
    block = CACHE_BLOCK_WEIGHTS if x.shape[0] <= _FEW_ROWS else LARGE_BLOCK_WEIGHTS
    parts = [functional.linear(x, rows) for rows in row_blocks(weight, x.dtype, block)]
    out = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
    return out if bias is None else out + bias


@operation("linears", cuda=_CUDA)
def linears(x: Tensor, projections: Projections, singles: int = 0) -> tuple[Tensor, ...]:
    """x [N, in] times each of the matrices: [N, out] each, as `linear` would give them."""
    pairs = zip(projections.weights, projections.biases, strict=True)
    return tuple(linear(x, weight, bias, singles) for weight, bias in pairs)


@operation("mlp")
def mlp(x: Tensor, gate_up_down: Projections, singles: int = 0) -> Tensor:
    """down(silu(gate(x)) * up(x)) of x [N, hidden]: [N, hidden] in x's dtype."""
    gate, up, down = zip(gate_up_down.weights, gate_up_down.biases, strict=True)
    return linear(swiglu(linear(x, *gate, singles), linear(x, *up, singles)), *down, singles)


@operation("embedding", cuda="engine.kernels.gpu.embedding")
def embedding(tokens: Tensor, weight: StoredWeight, dtype: torch.dtype) -> Tensor:
    """Rows `tokens` (int64 [N]) of weight [vocab, hidden]: [N, hidden] in `dtype`."""
    parts = weight.parts
    rows = parts["weight"].view(torch.uint8) if weight.format == "fp8_block" else parts["weight"]
    chosen = rows[tokens]
    if weight.format in PLAIN_FORMATS:
        return chosen.to(dtype)
    if weight.format == "nvfp4":
        # Indexed as bytes: not every torch gathers float8.
        scale = parts["scale"].view(torch.uint8)[tokens].view(torch.float8_e4m3fn)
        return dequantise_nvfp4(chosen, scale, parts["scale_2"], dtype)
    if weight.format == "mxfp4":
        return dequantise_mxfp4(chosen, parts["scale"][tokens], dtype)
    if weight.format == "fp8_block":
        scale = parts["scale"][tokens // FP8_BLOCK].repeat_interleave(FP8_BLOCK, 1)
        codes = e4m3_to_float32(chosen.view(torch.float8_e4m3fn))
        return (codes * scale[:, : codes.shape[1]]).to(dtype)
    if weight.format in GGUF_BLOCKS:
        picked = StoredWeight(weight.format, (len(tokens), weight.shape[1]), {"weight": chosen})
        return dequantise_rows(picked, 0, len(tokens), dtype)
    raise ValueError(f"no embedding of format {weight.format}")
