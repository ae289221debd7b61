"""Checkpoints under other names, so that a family sees the names it knows."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from engine.formats.checkpoint import Checkpoint
from engine.formats.tensor_info import TensorInfo


class View(Checkpoint):
    """Another checkpoint's tensors; subclasses say which and how they are called."""

    def __init__(self, inner: Checkpoint) -> None:
        self.inner = inner
        self.path = inner.path
        self.display_name = inner.display_name
        self.kind = inner.kind
        self.config = inner.config
        self.config_source = inner.config_source
        self.generation_config = inner.generation_config
        self.quantisation = inner.quantisation


class TextTower(View):
    """The language model of a multimodal checkpoint: `model.language_model.X` is seen as `model.X`.

    Tensors that start with one of `skipped` belong to other towers and are not seen.
    """

    PREFIX = "model.language_model."

    def __init__(self, inner: Checkpoint, skipped: tuple[str, ...]) -> None:
        super().__init__(inner)
        self._stored: dict[str, str] = {}
        self.left_out: dict[str, int] = dict.fromkeys(skipped, 0)
        for name in inner.names():
            prefix = next((p for p in skipped if name.startswith(p)), None)
            if prefix is not None:
                self.left_out[prefix] += 1
            elif name.startswith(self.PREFIX):
                self._stored["model." + name[len(self.PREFIX) :]] = name
            else:
                self._stored[name] = name

    def names(self) -> Iterable[str]:
        return self._stored.keys()

    def has(self, name: str) -> bool:
        return name in self._stored

    def info(self, name: str) -> TensorInfo:
        stored = self.inner.info(self._stored.get(name, name))
        return TensorInfo(
            name, stored.dtype, stored.shape, stored.nbytes, stored.file, stored.offset
        )

    def read(self, name: str) -> Tensor:
        return self.inner.read(self._stored.get(name, name))
