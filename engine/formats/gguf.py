"""Read GGUF files: metadata, the tensor table, and tensors as float32 (see gguf_blocks.py).

Only numpy is needed. The file is memory-mapped and every count, length and offset in it is checked
against what is left of the file before it is used, so a truncated or hostile file raises
`GgufError` (naming the file and the field) instead of allocating by its word.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.formats.gguf_blocks import TENSOR_TYPES, Bytes, Floats, GgufError, dequantise

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
            kind = TENSOR_TYPES[number]
            if shape[-1] % kind.weights:
                problem = f"rows of {shape[-1]} do not divide into {kind.name} blocks"
                raise cursor.fail(field, problem)
            weights = 1
            for extent in shape:
                weights *= extent
            nbytes = weights // kind.weights * kind.nbytes
            if offset % alignment:
                raise cursor.fail(field, f"offset {offset} is not a multiple of {alignment}")
            if start + offset + nbytes > len(self.data):
                raise cursor.fail(
                    field,
                    f"{nbytes} bytes at {start + offset} run past the end ({len(self.data)})",
                )
            table[name] = TensorInfo(name, shape, kind.name, start + offset, nbytes)
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
        try:
            return dequantise(self.raw(name), info.kind).reshape(info.shape)
        except GgufError as error:
            raise GgufError(f"{self.path}: tensor {name}: {error}") from error
