"""Checkpoints under the hub's plain names, so that every family is loaded in one way."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from engine.formats.checkpoint import Checkpoint, wrong_tensor
from engine.formats.gguf_parts import GGUF_BLOCKS
from engine.formats.tensor_info import TensorInfo
from engine.models.llama_gguf import hub_config, hub_name

_TEXT_TOWER = "model.language_model."
_LAYER = re.compile(r"model\.layers\.(\d+)\.")


class View(Checkpoint):
    """Another checkpoint's tensors; `stored` gives its name for each of ours."""

    def __init__(self, inner: Checkpoint, stored: dict[str, str]) -> None:
        self.inner = inner
        self.path = inner.path
        self.display_name = inner.display_name
        self.kind = inner.kind
        self.config = inner.config
        self.config_source = inner.config_source
        self.generation_config = inner.generation_config
        self.quantisation = inner.quantisation
        self.notes = inner.notes
        self._stored = stored

    def names(self) -> Iterable[str]:
        return self._stored.keys()

    def has(self, name: str) -> bool:
        return name in self._stored

    def info(self, name: str) -> TensorInfo:
        return replace(self.inner.info(self._stored.get(name, name)), name=name)

    def read(self, name: str) -> Tensor:
        return self.inner.read(self._stored.get(name, name))

    def read_blocks(self, name: str) -> Tensor:
        return self.inner.read_blocks(self._stored.get(name, name))


def text_tower(inner: Checkpoint, skipped: tuple[str, ...]) -> View:
    """The language model of a multimodal checkpoint: `model.language_model.X` is seen as `model.X`.

    Tensors that start with one of `skipped` belong to other towers and are not seen.
    """
    stored = {}
    for name in inner.names():
        if not name.startswith(skipped):
            plain = name.removeprefix(_TEXT_TOWER)
            stored[name if plain == name else f"model.{plain}"] = name
    return View(inner, stored)


def without_layers_from(inner: Checkpoint, count: int) -> View:
    """Of a checkpoint under the hub's plain names: layers `count` and later are not seen."""

    def seen(name: str) -> bool:
        layer = _LAYER.match(name)
        return layer is None or int(layer[1]) < count

    return View(inner, {name: name for name in inner.names() if seen(name)})


class LlamaGguf(View):
    """Rows of q and k return to the hub's order: GGUF interleaves each head's two halves."""

    def __init__(self, inner: Checkpoint) -> None:
        super().__init__(inner, {hub_name(name): name for name in inner.names()})
        self.config = hub_config(inner)
        self._heads = {
            "q_proj": int(self.config["num_attention_heads"]),
            "k_proj": int(self.config["num_key_value_heads"]),
        }

    def info(self, name: str) -> TensorInfo:
        """Blocks as the file has them; plain tensors as `read` gives them."""
        stored = super().info(name)
        if stored.dtype.lower() in GGUF_BLOCKS:
            return stored
        return replace(stored, dtype="float32", nbytes=4 * math.prod(stored.shape))

    def read(self, name: str) -> Tensor:
        return self._in_hub_order(name, super().read(name).to(torch.float32))

    def read_blocks(self, name: str) -> Tensor:
        return self._in_hub_order(name, super().read_blocks(name))

    def _in_hub_order(self, name: str, rows: Tensor) -> Tensor:
        heads = self._heads.get(name.split(".")[-2])
        if heads is None:
            return rows
        pairs = rows.shape[0] // heads // 2
        if rows.shape[0] != heads * pairs * 2:
            raise wrong_tensor(
                self.info(name), f"has {rows.shape[0]} rows, which {heads} heads do not divide"
            )
        interleaved = rows.reshape(heads, pairs, 2, *rows.shape[1:])
        return interleaved.transpose(1, 2).reshape(rows.shape)
