"""Writes small GGUF files."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from engine.formats.gguf import MAGIC
from engine.formats.gguf_blocks import TENSOR_TYPES

_STRING, _ARRAY = 8, 9


def write_gguf(
    path: str | os.PathLike[str],
    metadata: dict[str, str | int | float | list[str]],
    tensors: dict[str, tuple[str, tuple[int, ...], bytes]],
    alignment: int = 32,
) -> None:
    """Write metadata and tensors: name -> (type, numpy shape, raw bytes)."""
    numbers = {kind.name: number for number, kind in TENSOR_TYPES.items()}

    def text(value: str) -> bytes:
        raw = value.encode("utf-8")
        return struct.pack("<Q", len(raw)) + raw

    pairs = {**metadata, "general.alignment": alignment}
    out = bytearray(MAGIC + struct.pack("<IQQ", 3, len(tensors), len(pairs)))
    for key, value in pairs.items():
        out += text(key)
        if isinstance(value, str):
            out += struct.pack("<I", _STRING) + text(value)
        elif isinstance(value, int):
            out += struct.pack("<II", 4, value)
        elif isinstance(value, float):
            out += struct.pack("<If", 6, value)
        else:
            out += struct.pack("<IIQ", _ARRAY, _STRING, len(value))
            out += b"".join(text(item) for item in value)
    offset = 0
    for name, (kind, shape, raw) in tensors.items():
        out += text(name) + struct.pack("<I", len(shape))
        out += struct.pack(f"<{len(shape)}Q", *reversed(shape))
        out += struct.pack("<IQ", numbers[kind], offset)
        offset += -(-len(raw) // alignment) * alignment
    out += bytes(-len(out) % alignment)
    for _, _, raw in tensors.values():
        out += raw + bytes(-len(raw) % alignment)
    Path(path).write_bytes(bytes(out))
