"""GGUF's tensor types: one row a type, with the decoder of those that are read. Numpy only.

A decoder takes whole blocks, uint8 [n, bytes of a block], and returns their weights as float32; any
shape will do whose elements are in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


class GgufError(ValueError):
    """The file is not a GGUF file this reader can use; the text names the file and the field."""


def _f32(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view("<f4").astype(np.float32)


def _f16(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view("<f2").astype(np.float32)


def _bf16(blocks: Bytes) -> Floats:
    upper = np.ascontiguousarray(blocks).view("<u2").astype(np.uint32) << 16
    return upper.view(np.float32)


def _int8(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view(np.int8).astype(np.float32)


def _nibbles(packed: Bytes) -> Floats:
    """[..., n] bytes to [..., 2n] codes 0-15: all the low halves, then all the high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1).astype(np.float32)


def _q4_0(blocks: Bytes) -> Floats:
    return _f16(blocks[:, :2]) * (_nibbles(blocks[:, 2:]) - 8)


def _q4_1(blocks: Bytes) -> Floats:
    return _f16(blocks[:, :2]) * _nibbles(blocks[:, 4:]) + _f16(blocks[:, 2:4])


def _q8_0(blocks: Bytes) -> Floats:
    return _f16(blocks[:, :2]) * _int8(blocks[:, 2:])


def _q4_k(blocks: Bytes) -> Floats:
    # Eight 6-bit scales and minima in twelve bytes: the first four of each lie in the low six
    # bits of bytes 0-3 and 4-7; the last four share bytes 8-11 and the top bits of the others.
    low, middle, high = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([low & 63, (high & 15) | ((low >> 6) << 4)], axis=1)
    minima = np.concatenate([middle & 63, (high >> 4) | ((middle >> 6) << 4)], axis=1)
    scale = _f16(blocks[:, 0:2]) * scales.astype(np.float32)
    least = _f16(blocks[:, 2:4]) * minima.astype(np.float32)
    # Each 32 bytes hold two groups of 32: low halves first, then high halves.
    codes = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return scale[:, :, None] * codes - least[:, :, None]


def _q6_k(blocks: Bytes) -> Floats:
    low = blocks[:, 0:128].reshape(-1, 2, 2, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32)
    # Each half of 128 weights is four runs of 32: the low halves of 64 bytes, then the high ones;
    # run r takes bits 2r and 2r+1 of the half's 32 `high` bytes as its upper two bits.
    four = np.concatenate([low & 15, low >> 4], axis=2)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(1, 1, 4, 1)
    codes = (four | (((high >> shifts) & 3) << 4)).astype(np.float32) - 32.0
    scale = _f16(blocks[:, 208:210]) * _int8(blocks[:, 192:208])
    weights: Floats = scale[:, :, None] * codes.reshape(-1, 16, 16)
    return weights


class TensorType(NamedTuple):
    name: str
    weights: int
    """In one block."""
    nbytes: int
    """Of one block."""
    decode: Callable[[Bytes], Floats] | None = None


TENSOR_TYPES = {
    0: TensorType("F32", 1, 4, _f32),
    1: TensorType("F16", 1, 2, _f16),
    2: TensorType("Q4_0", 32, 18, _q4_0),
    3: TensorType("Q4_1", 32, 20, _q4_1),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34, _q8_0),
    9: TensorType("Q8_1", 32, 36),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144, _q4_k),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210, _q6_k),
    15: TensorType("Q8_K", 256, 292),
    24: TensorType("I8", 1, 1),
    25: TensorType("I16", 1, 2),
    26: TensorType("I32", 1, 4),
    27: TensorType("I64", 1, 8),
    28: TensorType("F64", 1, 8),
    30: TensorType("BF16", 1, 2, _bf16),
}
"""By the number that stands in a file."""

READABLE = {kind.name: kind for kind in TENSOR_TYPES.values() if kind.decode is not None}


def dequantise(raw: Bytes, name: str) -> Floats:
    """The weights of whole blocks of the type `name`, as a flat float32 array."""
    kind = READABLE.get(name)
    if kind is None or kind.decode is None:
        raise GgufError(f"cannot read type {name}")
    if raw.dtype != np.uint8 or raw.size % kind.nbytes:
        raise GgufError(f"{raw.size} bytes are not whole {name} blocks")
    return kind.decode(np.asarray(raw).reshape(-1, kind.nbytes)).reshape(-1)
