"""Where one tensor of a checkpoint lies. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TensorInfo:
    """`dtype` is torch's name of the stored type ("bfloat16"), or a GGUF block type ("Q4_1")."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    file: Path
    offset: int
    """Bytes from the start of the file."""


@dataclass(frozen=True)
class FileRange:
    """`nbytes` at `offset` of a file."""

    file: Path
    offset: int
    nbytes: int
