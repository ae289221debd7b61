"""Checkpoints under other names, so that a family sees the names it knows."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from engine.formats.checkpoint import Checkpoint, wrong_tensor
from engine.formats.tensor_info import TensorInfo
from engine.models.llama_gguf import hub_config, hub_name


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
        for name in inner.names():
            if name.startswith(skipped):
                continue
            if name.startswith(self.PREFIX):
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


class LlamaGguf(View):
    """Rows of q and k return to the hub's order: GGUF interleaves each head's two halves."""

    def __init__(self, inner: Checkpoint) -> None:
        super().__init__(inner)
        self._stored = {hub_name(name): name for name in inner.names()}
        self.config = hub_config(inner)
        self._heads = {
            "q_proj": int(self.config["num_attention_heads"]),
            "k_proj": int(self.config["num_key_value_heads"]),
        }

    def names(self) -> Iterable[str]:
        return self._stored.keys()

    def has(self, name: str) -> bool:
        return name in self._stored

    def info(self, name: str) -> TensorInfo:
        """As `read` gives it: float32, whatever the blocks in the file are."""
        stored = self.inner.info(self._stored.get(name, name))
        nbytes = 4 * math.prod(stored.shape)
        return TensorInfo(name, "float32", stored.shape, nbytes, stored.file, stored.offset)

    def read(self, name: str) -> Tensor:
        tensor = self.inner.read(self._stored.get(name, name)).to(torch.float32)
        heads = self._heads.get(name.split(".")[-2])
        if heads is None:
            return tensor
        pairs = tensor.shape[0] // heads // 2
        if tensor.shape[0] != heads * pairs * 2:
            raise wrong_tensor(
                self.info(name), f"has {tensor.shape[0]} rows, which {heads} heads do not divide"
            )
        rest = tensor.shape[1:]
        interleaved = tensor.reshape(heads, pairs, 2, *rest)
        return interleaved.transpose(1, 2).reshape(tensor.shape)
