"""Read and check the header of a safetensors file. Torch-free.

The format: eight bytes of little-endian header length, that many bytes of JSON (name -> dtype,
shape, begin and end within the data), then the data without holes. Nothing in it is believed: every
number is checked against the size of the file before it is used, so that a truncated download is
found when the model is opened and a hostile header allocates nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from engine.errors import ModelFilesError
from engine.formats.file_checks import begins_as_text, require_file, unreadable
from engine.formats.tensor_info import TensorInfo

MAX_HEADER_BYTES = 100_000_000
"""The limit of the format's own reader."""

INCOMPLETE = "The download is incomplete: fetch the file again."

# safetensors' name -> torch's name, bytes
DTYPES: dict[str, tuple[str, int]] = {
    "BOOL": ("bool", 1),
    "U8": ("uint8", 1),
    "I8": ("int8", 1),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "F8_E8M0": ("float8_e8m0fnu", 1),
    "U16": ("uint16", 2),
    "I16": ("int16", 2),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "U32": ("uint32", 4),
    "I32": ("int32", 4),
    "F32": ("float32", 4),
    "U64": ("uint64", 8),
    "I64": ("int64", 8),
    "F64": ("float64", 8),
}


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Every tensor of the file by name. Raises ModelFilesError that names file and tensor."""
    require_file(path)
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            if len(prefix) < 8:
                problem = "is empty" if size == 0 else f"has only {size} bytes"
                raise ModelFilesError(f"{path} {problem}", hint=INCOMPLETE)
            length = int.from_bytes(prefix, "little")
            if length == 0:
                raise ModelFilesError(f"{path} begins with zeros, not weights", hint=INCOMPLETE)
            if length > MAX_HEADER_BYTES and (text := begins_as_text(prefix + file.read(100))):
                raise ModelFilesError(
                    f"{path} holds text instead of weights: {text!r}", hint="Fetch the file again."
                )
            if length > min(size - 8, MAX_HEADER_BYTES):
                raise ModelFilesError(
                    f"{path} is not a usable safetensors file: it claims a header of {length} "
                    f"bytes, the file has {size}",
                    hint=INCOMPLETE,
                )
            raw = file.read(length)
    except OSError as error:
        raise unreadable(path, error) from error
    quick = _quick_tensors(path, raw, 8 + length, size)
    return quick if quick is not None else _tensors(path, _parse(path, raw), 8 + length, size)


class _Entry(msgspec.Struct):
    dtype: str = ""
    shape: list[int] = []
    data_offsets: tuple[int, int] = (0, -1)


_entries = msgspec.json.Decoder(dict[str, _Entry])


def _quick_tensors(path: Path, raw: bytes, start: int, size: int) -> dict[str, TensorInfo] | None:
    """As `_tensors`, for a header without fault; None for any other, of which `_tensors` says what
    is wrong. A checkpoint of many experts has a hundred thousand entries."""
    try:
        header = _entries.decode(raw)
    except (ValueError, RecursionError):
        return None
    header.pop("__metadata__", None)
    if raw.count(b'"data_offsets"') != len(header):  # a name that appears twice, say
        return None
    tensors: dict[str, TensorInfo] = {}
    for name, entry in header.items():
        torch_name, width = DTYPES.get(entry.dtype, ("", 0))
        begin, end = entry.data_offsets
        nbytes = width
        for extent in entry.shape:
            if extent < 0:
                return None
            nbytes *= extent
        if not width or begin < 0 or end - begin != nbytes or start + end > size:
            return None
        tensors[name] = TensorInfo(
            name, torch_name, tuple(entry.shape), nbytes, path, start + begin
        )
    _check_cover(path, tensors, start, size)
    return tensors


def _parse(path: Path, raw: bytes) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        record = dict(pairs)
        if len(record) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ModelFilesError(f"{path}: {twice!r} appears twice in the header")
        return record

    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise ModelFilesError(f"{path}: its header is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise ModelFilesError(f"{path}: its header is not a JSON object")
    header.pop("__metadata__", None)
    return header


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _tensors(path: Path, header: dict[str, Any], start: int, size: int) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for name, entry in header.items():
        where = f"{path}: tensor {name}"
        if not isinstance(entry, dict):
            raise ModelFilesError(f"{where}: its entry is not a JSON object")
        dtype = entry.get("dtype")
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise ModelFilesError(f"{where}: dtype {dtype!r} is not known")
        shape = entry.get("shape")
        if not isinstance(shape, list) or not all(_is_count(extent) for extent in shape):
            raise ModelFilesError(f"{where}: shape {shape!r} is not a list of sizes")
        offsets = entry.get("data_offsets")
        if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)):
            raise ModelFilesError(f"{where}: data_offsets {offsets!r} are not two positions")
        begin, end = offsets
        torch_name, width = DTYPES[dtype]
        nbytes = width
        for extent in shape:
            nbytes *= extent
        if end - begin != nbytes:
            raise ModelFilesError(
                f"{where}: {dtype} of shape {shape} takes {nbytes} bytes, its offsets span "
                f"{end - begin}"
            )
        if start + end > size:
            raise ModelFilesError(
                f"{path} is truncated: tensor {name} ends at byte {start + end}, the file has "
                f"{size}",
                hint=INCOMPLETE,
            )
        tensors[name] = TensorInfo(name, torch_name, tuple(shape), nbytes, path, start + begin)
    _check_cover(path, tensors, start, size)
    return tensors


def _check_cover(path: Path, tensors: dict[str, TensorInfo], start: int, size: int) -> None:
    """The tensors must cover the data exactly: no overlap, no hole, nothing behind the last."""
    position = start
    for info in sorted(tensors.values(), key=lambda tensor: (tensor.offset, tensor.nbytes)):
        if info.offset < position:
            raise ModelFilesError(f"{path}: tensor {info.name} overlaps the one before it")
        if info.offset > position:
            raise ModelFilesError(
                f"{path}: {info.offset - position} bytes before tensor {info.name} belong to none"
            )
        position += info.nbytes
    if position != size:
        raise ModelFilesError(
            f"{path}: {size - position} bytes after the last tensor belong to none"
        )
