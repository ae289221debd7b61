"""One expert's weights end to end: the one layout that copies, GPU and CPU kernels all read.

Order of a blob: gate rows then up rows in one matrix, its scales, its biases, the down matrix with
the same, and last the float32 globals. Every part begins at a multiple of 16 bytes (for 16-byte
loads), blobs follow one another at a multiple of 4 KiB. Nothing is requantised or repacked: bytes
are as stored.

  format                     gate_up.weight        gate_up.scale               globals
  float32 bfloat16 float16   [2I, H]               -                           -
  fp8_block                  e4m3 [2I, H]          float32 [2, I/128, H/128]   -
  nvfp4                      uint8 [2I, H/2]       e4m3 [2I, H/16]             float32 [2], [1]
  mxfp4                      uint8 [2I, H/2]       uint8 [2I, H/32]            -

(I intermediate, H hidden; down likewise with one matrix [H, I]). Experts with biases, whatever the
format, have gate_up.bias [2I] and down.bias [H], float32 or bfloat16. Torch-free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.errors import ModelConfigError, UnsupportedModel
from engine.formats.quantisation import FP8_BLOCK, MXFP4_GROUP, NVFP4_GROUP

PART_ALIGNMENT = 16
BLOB_ALIGNMENT = 4096
PLAIN_FORMATS = ("float32", "bfloat16", "float16")
FORMATS = (*PLAIN_FORMATS, "fp8_block", "nvfp4", "mxfp4")
BIAS_TYPES = ("float32", "bfloat16")
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "uint8": 1}


@dataclass(frozen=True)
class BlobPart:
    """`offset` in bytes from the blob's begin; `stride` in elements, row-major."""

    name: str
    offset: int
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class BlobSpec:
    """The layout of every expert blob of a layer."""

    gate_up_format: str
    down_format: str
    hidden: int
    intermediate: int
    bias: str | None
    """dtype of the biases; None if there are none."""
    parts: tuple[BlobPart, ...]
    nbytes: int
    """Bytes up to the end of the last part."""
    stride: int
    """Distance of one blob from the next: `nbytes` rounded up to 4 KiB."""

    def part(self, name: str) -> BlobPart:
        for part in self.parts:
            if part.name == name:
                return part
        raise KeyError(f"a blob of {self.gate_up_format}/{self.down_format} has no part {name}")


def blob_spec(
    gate_up_format: str,
    hidden: int,
    intermediate: int,
    down_format: str | None = None,
    bias: str | None = None,
) -> BlobSpec:
    """The layout of experts [I, H], [I, H], [H, I] whose matrices have these formats, and biases of
    this dtype.

    Raises UnsupportedModel for an unknown format or dtype, ModelConfigError for sizes that a format
    cannot hold.
    """
    down_format = gate_up_format if down_format is None else down_format
    if hidden < 1 or intermediate < 1:
        raise ModelConfigError(f"an expert of {intermediate} x {hidden} has no weights")
    if bias is not None and bias not in BIAS_TYPES:
        raise UnsupportedModel(
            f"Experts with biases in {bias} are not supported.",
            hint=f"Supported are {', '.join(BIAS_TYPES)}.",
        )
    gate_up = _matrix("gate_up", gate_up_format, 2, intermediate, hidden)
    down = _matrix("down", down_format, 1, hidden, intermediate)
    if bias is not None:
        gate_up.append(("gate_up.bias", bias, (2 * intermediate,)))
        down.append(("down.bias", bias, (hidden,)))
    # Sorting is stable: only the globals move, behind everything else.
    wanted = sorted([*gate_up, *down], key=lambda part: part[0].endswith("scale_2"))
    parts = []
    end = 0
    for name, dtype, shape in wanted:
        offset = round_up(end, PART_ALIGNMENT)
        part = BlobPart(name, offset, dtype, shape, _row_major(shape))
        parts.append(part)
        end = offset + part.nbytes
    return BlobSpec(
        gate_up_format=gate_up_format,
        down_format=down_format,
        hidden=hidden,
        intermediate=intermediate,
        bias=bias,
        parts=tuple(parts),
        nbytes=end,
        stride=round_up(end, BLOB_ALIGNMENT),
    )


def _matrix(
    name: str, storage: str, matrices: int, rows: int, columns: int
) -> list[tuple[str, str, tuple[int, ...]]]:
    """(part, dtype, shape) of `matrices` matrices [rows, columns] laid one after the other."""
    stacked = matrices * rows
    if storage in PLAIN_FORMATS:
        return [(f"{name}.weight", storage, (stacked, columns))]
    if storage == "fp8_block":
        blocks = (matrices, -(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK))
        return [
            (f"{name}.weight", "float8_e4m3fn", (stacked, columns)),
            (f"{name}.scale", "float32", blocks),
        ]
    if storage == "nvfp4":
        if columns % NVFP4_GROUP:
            raise ModelConfigError(
                f"an NVFP4 expert with {columns} columns does not divide into groups of "
                f"{NVFP4_GROUP}"
            )
        return [
            (f"{name}.weight", "uint8", (stacked, columns // 2)),
            (f"{name}.scale", "float8_e4m3fn", (stacked, columns // NVFP4_GROUP)),
            (f"{name}.scale_2", "float32", (matrices,)),
        ]
    if storage == "mxfp4":
        if columns % MXFP4_GROUP:
            raise ModelConfigError(
                f"an MXFP4 expert with {columns} columns does not divide into groups of "
                f"{MXFP4_GROUP}"
            )
        return [
            (f"{name}.weight", "uint8", (stacked, columns // 2)),
            (f"{name}.scale", "uint8", (stacked, columns // MXFP4_GROUP)),
        ]
    raise UnsupportedModel(
        f"Experts in the format {storage!r} are not supported.",
        hint=f"Supported are {', '.join(FORMATS)}.",
    )


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def round_up(number: int, to: int) -> int:
    """The next multiple of `to`."""
    return -(-number // to) * to
