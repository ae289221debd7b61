"""Keys and values of full attention in pages of a few tokens, all layers of a page together.

The page is the outermost dimension, so the end of the pool can be given back or grown in an arena
without moving what stays.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.context.batch import Batch
from engine.memory.arena import Arena
from engine.models.spec import ModelSpec


@dataclass(frozen=True)
class KvSlots:
    """Where each row of a batch keeps its key and value: int64 [N] page and offset within it."""

    pages: Tensor
    offsets: Tensor


class KvPages:
    """Storage [pages, attention layers, 2, page_tokens, kv_heads, head_dim], compute dtype."""

    def __init__(
        self,
        spec: ModelSpec,
        pages: int,
        page_tokens: int = 16,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
        arena: Arena | None = None,
        most: int = 0,
    ) -> None:
        """In `arena`, which must be empty and large enough; without one, in an arena of its own,
        which can grow to `most` pages."""
        attention = spec.attention
        self.page_tokens = page_tokens
        self.head_dim = attention.head_dim
        self.dtype = dtype
        self.device = device or torch.device("cpu")
        self._layer_index = {layer: i for i, layer in enumerate(spec.attention_layers)}
        self._page_shape = (
            len(spec.attention_layers), 2, page_tokens, attention.kv_heads, attention.head_dim
        )  # fmt: skip
        weights = 1
        for extent in self._page_shape:
            weights *= extent
        self.page_bytes = weights * dtype.itemsize
        if arena is None:
            arena = Arena.reserve(
                max(pages, most) * self.page_bytes, self.device, first=pages * self.page_bytes
            )
        self._arena = arena
        self.pages = 0
        self.resize(pages)

    @property
    def nbytes(self) -> int:
        return self.pages * self.page_bytes

    @property
    def backed(self) -> int:
        """Memory of the device that the pages hold."""
        return self._arena.backed

    def resize(self, pages: int) -> None:
        """Grow, or give the last pages back; others keep what they hold. May raise OutOfMemory."""
        self._arena.resize(pages * self.page_bytes)
        self.pages = pages
        storage = self._arena.view(0, (pages, *self._page_shape), self.dtype)
        # Made once, since every layer of every step asks for its own.
        self._views = [tuple(layer.unbind(1)) for layer in storage.unbind(1)]

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_tokens)

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Views of a layer's keys and values: [pages, page_tokens, kv_heads, head_dim] each."""
        keys, values = self._views[self._layer_index[layer]]
        return keys, values

    def slots(self, batch: Batch) -> KvSlots:
        """The places of all rows of a batch, the same in every layer."""
        pages = torch.empty_like(batch.positions)
        for seq in batch.sequences:
            rows = slice(seq.start, seq.start + seq.length)
            pages[rows] = seq.pages[batch.positions[rows] // self.page_tokens]
        return KvSlots(pages, batch.positions % self.page_tokens)

    def read(self, layer: int, pages: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
        """Copies of a sequence's first keys and values: [tokens, kv_heads, head_dim] each."""
        keys, values = self.layer(layer)
        wanted = pages[: self.pages_for(tokens)]
        return keys[wanted].flatten(0, 1)[:tokens], values[wanted].flatten(0, 1)[:tokens]
