"""The structures of the library's interface that layers fill in (`source/headrace_native.h`)."""

from __future__ import annotations

from ctypes import Structure, c_float, c_int32, c_int64, c_void_p
from typing import Any, ClassVar


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class Matrix(Structure):
    """headrace_matrix"""

    _fields_: ClassVar = [
        *_fields(c_int64, "rows columns"),
        *_fields(c_void_p, "weight scale scale_2 bias"),
        ("format", c_int32),
    ]


class AttentionLayout(Structure):
    """headrace_attention_layout"""

    _fields_: ClassVar = [
        *_fields(c_int64, "heads kv_heads head_dim pages page_tokens page_stride token_stride"),
        *_fields(c_void_p, "keys values"),
        ("type", c_int32),
        ("scale", c_float),
    ]


class Sequence(Structure):
    """headrace_sequence"""

    _fields_: ClassVar = [
        *_fields(c_int64, "start length context page_count"),
        ("pages", c_void_p),
    ]


class Rotation(Structure):
    """headrace_rotation"""

    _fields_: ClassVar = [
        *_fields(c_int64, "rows half"),
        *_fields(c_void_p, "q k v cosines sines pages offsets turned"),
    ]


class ReadOutcome(Structure):
    """headrace_read_outcome"""

    _fields_: ClassVar = [
        *_fields(c_int64, "direct offset"),
        *_fields(c_int32, "file system_error"),
    ]
