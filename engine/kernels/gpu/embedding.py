"""Rows of an embedding in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.formats.blob import PLAIN_FORMATS
from engine.formats.weight import StoredWeight
from engine.kernels import linear as operations
from engine.kernels.gpu.ahead import Ahead

_COLUMNS = 1024


@triton.jit
def embedding_kernel(tokens, weight, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < WIDTH
    chosen = tl.load(tokens + row).to(tl.int64) * WIDTH
    number = tl.load(weight + chosen + columns, mask=mask, other=0.0)
    tl.store(out + row * WIDTH + columns, number.to(out.dtype.element_ty), mask=mask)


def embedding(tokens: Tensor, weight: StoredWeight, dtype: torch.dtype) -> Tensor:
    """As engine.kernels.linear.embedding; formats that are not plain numbers take the reference."""
    if weight.format not in PLAIN_FORMATS:
        return operations.embedding.reference(tokens, weight, dtype)
    width = weight.shape[1]
    out = torch.empty((len(tokens), width), dtype=dtype, device=tokens.device)
    if len(tokens):
        embedding_kernel[(len(tokens), triton.cdiv(width, _COLUMNS))](
            *(tokens.contiguous(), weight.parts["weight"].contiguous(), out),
            WIDTH=width,
            BLOCK=_COLUMNS,
            num_warps=4,
        )
    return out


AHEAD = (
    Ahead(
        "embedding",
        embedding_kernel,
        {"tokens": "*i64", "weight": "*bf16", "out": "*bf16"},
        {"WIDTH": 2048, "BLOCK": _COLUMNS},
    ),
)
