"""Random weights and experts in each format, small."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.formats.blob import BlobSpec
from engine.formats.weight import StoredWeight
from engine.kernels.moe import part_view


def stored(storage: str, rows: int, columns: int) -> StoredWeight:
    """Scales spread over a factor of four, so that a wrong layout of them shows."""
    shape = (rows, columns)
    if storage == "fp8_block":
        scale = 0.5 * 4 ** torch.rand(-(-rows // 128), -(-columns // 128))
        codes = torch.randn(shape).to(torch.float8_e4m3fn)
        return StoredWeight(storage, shape, {"weight": codes, "scale": scale})
    if storage in ("float32", "bfloat16"):
        dtype = getattr(torch, storage)
        return StoredWeight(storage, shape, {"weight": torch.randn(shape).to(dtype)})
    codes = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8)
    if storage == "mxfp4":
        scale = torch.randint(126, 129, (rows, columns // 32), dtype=torch.uint8)
        return StoredWeight(storage, shape, {"weight": codes, "scale": scale})
    scale = (0.5 * 4 ** torch.rand(rows, columns // 16)).to(torch.float8_e4m3fn)
    parts = {"weight": codes, "scale": scale, "scale_2": torch.tensor(0.3)}
    return StoredWeight(storage, shape, parts)


def bank(spec: BlobSpec, blobs: int) -> Tensor:
    """uint8 [blobs, stride], with a global of its own for each matrix."""
    out = torch.randint(0, 256, (blobs, spec.stride), dtype=torch.uint8)
    for part in spec.parts:
        view = part_view(out, spec, part.name)
        if part.dtype == "uint8" and part.name.endswith("scale"):
            view.copy_(torch.randint(121, 124, view.shape))
        elif part.name.endswith(("scale", "scale_2")):
            view.copy_((0.1 * 4 ** torch.rand(view.shape)).to(view.dtype))
        elif part.dtype != "uint8":
            view.copy_((torch.randn(view.shape) * 0.3).to(view.dtype))
    return out


def error(got: Tensor, wanted: Tensor) -> float:
    """Norm of the difference over norm."""
    return float((got.double() - wanted.double()).norm() / wanted.double().norm())
