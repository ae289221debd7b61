"""What the native library reads through addresses, held to the shapes that it is told."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.formats.blob import PLAIN_FORMATS
from engine.formats.gguf_blocks import READABLE
from engine.formats.gguf_parts import GGUF_BLOCKS
from engine.formats.quantisation import FP8_BLOCK, MXFP4_GROUP, NVFP4_GROUP
from engine.formats.weight import StoredWeight


def check_matrix(weight: StoredWeight, bias: Tensor | None) -> None:
    """Raises ValueError unless `weight` is a matrix with all the parts of its format, and `bias`
    has a number for each of its rows."""
    if len(weight.shape) != 2 or min(weight.shape) < 0 or weight.shape[1] < 1:
        raise ValueError(f"a weight of shape {weight.shape} is no matrix")
    for name, (dtype, shape) in _parts(weight.format, *weight.shape).items():
        if name not in weight.parts:
            raise ValueError(f"{_text(weight)} has no part {name}")
        check_tensor(f"{name} of {_text(weight)}", weight.parts[name], dtype, shape)
    if bias is not None and tuple(bias.shape) != weight.shape[:1]:
        raise ValueError(f"bias of {_text(weight)} is {list(bias.shape)}")


def check_tensor(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Raises ValueError for another dtype, shape or device than the CPU."""
    if tensor.dtype != dtype or tensor.shape != shape or tensor.device.type != "cpu":
        raise ValueError(
            f"{name} is {_named(tensor.dtype)} {list(tensor.shape)} on {tensor.device.type}, "
            f"not {_named(dtype)} {list(shape)} on cpu"
        )


def _parts(storage: str, rows: int, columns: int) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """As StoredWeight lists them."""
    if storage in PLAIN_FORMATS:
        return {"weight": (getattr(torch, storage), (rows, columns))}
    if storage == "fp8_block":
        blocks = (-(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK))
        return {
            "weight": (torch.float8_e4m3fn, (rows, columns)),
            "scale": (torch.float32, blocks),
        }
    if storage == "nvfp4":
        groups = _whole(storage, columns, NVFP4_GROUP)
        return {
            "weight": (torch.uint8, (rows, columns // 2)),
            "scale": (torch.float8_e4m3fn, (rows, groups)),
            "scale_2": (torch.float32, ()),
        }
    if storage == "mxfp4":
        groups = _whole(storage, columns, MXFP4_GROUP)
        return {
            "weight": (torch.uint8, (rows, columns // 2)),
            "scale": (torch.uint8, (rows, groups)),
        }
    if storage in GGUF_BLOCKS:
        kind = READABLE[storage.upper()]
        size = _whole(storage, columns, kind.weights) * kind.nbytes
        return {"weight": (torch.uint8, (rows, size))}
    raise ValueError(f"no matrix of format {storage}")


def _whole(storage: str, columns: int, group: int) -> int:
    if columns % group:
        raise ValueError(f"{columns} columns are not whole groups of {group} in {storage}")
    return columns // group


def _text(weight: StoredWeight) -> str:
    return f"{weight.format} {list(weight.shape)}"


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
