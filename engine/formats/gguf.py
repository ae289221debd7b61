"""Read GGUF files: metadata, the tensor table, and tensors as float32.

Only numpy is needed. The file is memory-mapped and every count, length and offset in it is checked
against what is left of the file before it is used, so a truncated or hostile file raises
`GgufError` (naming the file and the field) instead of allocating by its word.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMS = 4
MAX_ARRAY_DEPTH = 4
MAX_ALIGNMENT = 1 << 20

# Metadata value types: number -> little-endian numpy type. 7 is bool, 8 string, 9 array.
_SCALARS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4",
    10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_BOOL, _STRING, _ARRAY = 7, 8, 9

# Tensor types: number -> (name, weights a block, bytes a block).
TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    30: ("BF16", 1, 2),
}


class GgufError(ValueError):
    """The file is not a GGUF file this reader can use; the text names the file and the field."""


@dataclass(frozen=True)
class TensorInfo:
    """One row of the tensor table; `shape` is in numpy order (rows first)."""

    name: str
    shape: tuple[int, ...]
    kind: str
    offset: int
    """Bytes from the start of the file."""
    nbytes: int


class _Cursor:
    """Reads values in order and refuses to go past the end."""

    def __init__(self, path: Path, data: Bytes) -> None:
        self.path = path
        self.data = data
        self.position = 0

    def fail(self, field: str, problem: str) -> GgufError:
        return GgufError(f"{self.path}: {field}: {problem}")

    def take(self, count: int, field: str) -> Bytes:
        left = len(self.data) - self.position
        if count > left:
            raise self.fail(field, f"needs {count} bytes at {self.position}, the file has {left}")
        view = self.data[self.position : self.position + count]
        self.position += count
        return view

    def unsigned(self, width: int, field: str) -> int:
        return int.from_bytes(self.take(width, field).tobytes(), "little")

    def count(self, smallest: int, field: str) -> int:
        """A 64-bit count of things that take at least `smallest` bytes each."""
        value = self.unsigned(8, field)
        left = len(self.data) - self.position
        if value * smallest > left:
            raise self.fail(field, f"counts {value}, more than the {left} bytes left can hold")
        return value

    def string(self, field: str) -> str:
        raw = self.take(self.count(1, f"{field} (length)"), field).tobytes()
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(field, "is not UTF-8") from error

    def value(self, kind: int, field: str, depth: int = 0) -> Any:
        if kind in _SCALARS:
            dtype = np.dtype(_SCALARS[kind])
            return self.take(dtype.itemsize, field).view(dtype)[0].item()
        if kind == _BOOL:
            return bool(self.unsigned(1, field))
        if kind == _STRING:
            return self.string(field)
        if kind == _ARRAY:
            if depth == MAX_ARRAY_DEPTH:
                raise self.fail(field, f"arrays nest deeper than {MAX_ARRAY_DEPTH}")
            return self.array(field, depth)
        raise self.fail(field, f"value type {kind} is unknown")

    def array(self, field: str, depth: int) -> Any:
        kind = self.unsigned(4, f"{field} (array type)")
        if kind in _SCALARS or kind == _BOOL:
            dtype = np.dtype(_SCALARS.get(kind, "<u1"))
            count = self.count(dtype.itemsize, f"{field} (array length)")
            # frombuffer, because a view needs an aligned start only when the type is not packed.
            values = np.frombuffer(self.take(count * dtype.itemsize, field).tobytes(), dtype)
            return values.astype(np.bool_) if kind == _BOOL else values
        smallest = {_STRING: 8, _ARRAY: 12}.get(kind, 1)
        count = self.count(smallest, f"{field} (array length)")
        return [self.value(kind, f"{field}[{i}]", depth + 1) for i in range(count)]


class GgufFile:
    """An open GGUF file: `metadata`, `tensors` and, on demand, `tensor(name)` as float32.

    Numeric metadata arrays are numpy arrays; arrays of strings are lists.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        size = self.path.stat().st_size
        if size < 24:
            raise GgufError(f"{self.path}: header: the file has only {size} bytes")
        self.data: Bytes = np.memmap(self.path, dtype=np.uint8, mode="r")
        cursor = _Cursor(self.path, self.data)
        if cursor.take(4, "magic").tobytes() != MAGIC:
            raise cursor.fail("magic", "is not GGUF")
        self.version = cursor.unsigned(4, "version")
        if self.version not in VERSIONS:
            raise cursor.fail("version", f"{self.version} is not one of {VERSIONS}")
        # A tensor row takes at least 32 bytes and a metadata pair at least 13.
        tensor_count = cursor.count(32, "tensor count")
        pair_count = cursor.count(13, "metadata count")
        self.metadata: dict[str, Any] = {}
        for i in range(pair_count):
            key = cursor.string(f"metadata key {i}")
            if key in self.metadata:
                raise cursor.fail(key, "appears twice")
            kind = cursor.unsigned(4, f"{key} (type)")
            self.metadata[key] = cursor.value(kind, key)
        self.tensors: dict[str, TensorInfo] = self._table(cursor, tensor_count)

    def _table(self, cursor: _Cursor, count: int) -> dict[str, TensorInfo]:
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= MAX_ALIGNMENT:
            raise cursor.fail("general.alignment", f"{alignment!r} is not a usable alignment")
        rows = [self._row(cursor, i) for i in range(count)]
        start = -(-cursor.position // alignment) * alignment
        table: dict[str, TensorInfo] = {}
        for name, shape, number, offset in rows:
            field = f"tensor {name}"
            if name in table:
                raise cursor.fail(field, "appears twice")
            kind, block, block_bytes = TENSOR_TYPES[number]
            if shape[-1] % block:
                raise cursor.fail(field, f"rows of {shape[-1]} do not divide into {kind} blocks")
            weights = 1
            for extent in shape:
                weights *= extent
            nbytes = weights // block * block_bytes
            if offset % alignment:
                raise cursor.fail(field, f"offset {offset} is not a multiple of {alignment}")
            if start + offset + nbytes > len(self.data):
                raise cursor.fail(
                    field,
                    f"{nbytes} bytes at {start + offset} run past the end ({len(self.data)})",
                )
            table[name] = TensorInfo(name, shape, kind, start + offset, nbytes)
        return table

    @staticmethod
    def _row(cursor: _Cursor, index: int) -> tuple[str, tuple[int, ...], int, int]:
        name = cursor.string(f"tensor {index} name")
        field = f"tensor {name}"
        dims = cursor.unsigned(4, f"{field} (dimension count)")
        if not 1 <= dims <= MAX_DIMS:
            raise cursor.fail(field, f"has {dims} dimensions")
        extents = [cursor.unsigned(8, f"{field} (dimension {i})") for i in range(dims)]
        if 0 in extents:
            raise cursor.fail(field, f"has an empty dimension in {extents}")
        number = cursor.unsigned(4, f"{field} (type)")
        if number not in TENSOR_TYPES:
            raise cursor.fail(field, f"tensor type {number} is unknown")
        offset = cursor.unsigned(8, f"{field} (offset)")
        # The file lists the fastest-moving extent first; numpy wants it last.
        return name, tuple(reversed(extents)), number, offset

    def info(self, name: str) -> TensorInfo:
        try:
            return self.tensors[name]
        except KeyError:
            raise GgufError(f"{self.path}: tensor {name}: is not in the file") from None

    def raw(self, name: str) -> Bytes:
        """The tensor's bytes as stored, a view of the mapped file."""
        info = self.info(name)
        return self.data[info.offset : info.offset + info.nbytes]

    def tensor(self, name: str) -> Floats:
        """The tensor as float32, dequantised where it is quantised."""
        info = self.info(name)
        if info.kind not in DEQUANTISERS:
            raise GgufError(f"{self.path}: tensor {name}: cannot read type {info.kind}")
        return dequantise(self.raw(name), info.kind).reshape(info.shape)


def _f16(column: Bytes) -> Floats:
    """float16 values from the bytes [blocks, 2n], as float32 [blocks, n]."""
    return np.ascontiguousarray(column).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> npt.NDArray[np.int8]:
    """[blocks, n] bytes to [blocks, 2n] codes: all the low halves, then all the high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1).astype(np.int8)


def _f32(raw: Bytes) -> Floats:
    return np.frombuffer(raw.tobytes(), "<f4").astype(np.float32)


def _half(raw: Bytes) -> Floats:
    return np.frombuffer(raw.tobytes(), "<f2").astype(np.float32)


def _bf16(raw: Bytes) -> Floats:
    upper = np.frombuffer(raw.tobytes(), "<u2").astype(np.uint32) << 16
    return upper.view(np.float32)


def _q4_0(raw: Bytes) -> Floats:
    blocks = raw.reshape(-1, 18)
    return _f16(blocks[:, :2]) * (_nibbles(blocks[:, 2:]) - 8).astype(np.float32)


def _q4_1(raw: Bytes) -> Floats:
    blocks = raw.reshape(-1, 20)
    scale, least = _f16(blocks[:, :2]), _f16(blocks[:, 2:4])
    return scale * _nibbles(blocks[:, 4:]).astype(np.float32) + least


def _q8_0(raw: Bytes) -> Floats:
    blocks = raw.reshape(-1, 34)
    codes = np.ascontiguousarray(blocks[:, 2:]).view(np.int8)
    return _f16(blocks[:, :2]) * codes.astype(np.float32)


def _q4_k(raw: Bytes) -> Floats:
    blocks = raw.reshape(-1, 144)
    packed = blocks[:, 4:16]
    # Eight 6-bit scales and minima in twelve bytes: the first four of each lie in the low six
    # bits of bytes 0-3 and 4-7; the last four share bytes 8-11 and the top bits of the others.
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([low & 63, (high & 15) | ((low >> 6) << 4)], axis=1)
    minima = np.concatenate([middle & 63, (high >> 4) | ((middle >> 6) << 4)], axis=1)
    scale = _f16(blocks[:, 0:2]) * scales.astype(np.float32)
    least = _f16(blocks[:, 2:4]) * minima.astype(np.float32)
    # Each 32 bytes hold two groups of 32: low halves first, then high halves.
    codes = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return scale[:, :, None] * codes.astype(np.float32) - least[:, :, None]


def _q6_k(raw: Bytes) -> Floats:
    blocks = raw.reshape(-1, 210)
    low = blocks[:, 0:128].reshape(-1, 2, 2, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32)
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    # Each half of 128 weights is four runs of 32: the low halves of 64 bytes, then the high ones;
    # run r takes bits 2r and 2r+1 of the half's 32 `high` bytes as its upper two bits.
    four = np.concatenate([low & 15, low >> 4], axis=2)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(1, 1, 4, 1)
    codes = (four | (((high >> shifts) & 3) << 4)).astype(np.float32) - 32.0
    scale = (_f16(blocks[:, 208:210]) * scales)[:, :, None]
    weights: Floats = scale * codes.reshape(-1, 16, 16)
    return weights


DEQUANTISERS: dict[str, Callable[[Bytes], Floats]] = {
    "F32": _f32,
    "F16": _half,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q6_K": _q6_k,
}


def dequantise(raw: Bytes, kind: str) -> Floats:
    """The weights of whole blocks of type `kind`, as a flat float32 array."""
    if kind not in DEQUANTISERS:
        raise GgufError(f"cannot dequantise type {kind}")
    block_bytes = next(size for name, _, size in TENSOR_TYPES.values() if name == kind)
    if raw.dtype != np.uint8 or raw.size % block_bytes:
        raise GgufError(f"{raw.size} bytes are not whole {kind} blocks")
    return DEQUANTISERS[kind](np.asarray(raw).reshape(-1)).reshape(-1)
