"""What describing a model needs of it: its configuration and a list of its tensors. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from engine.formats.tensor_info import TensorInfo


class ModelSource(Protocol):
    """Files that were inspected, or an open checkpoint: both know this much."""

    @property
    def kind(self) -> str: ...
    @property
    def path(self) -> Path: ...
    @property
    def config(self) -> dict[str, Any]:
        """config.json, or a GGUF file's metadata."""

    @property
    def config_source(self) -> str:
        """What a message calls it."""

    @property
    def generation_config(self) -> dict[str, Any]: ...
    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the log about the files."""

    def names(self) -> Iterable[str]: ...
    def has(self, name: str) -> bool: ...
    def info(self, name: str) -> TensorInfo: ...
