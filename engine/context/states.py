"""States of recurrent layers: one row for each running sequence, all layers of a row together."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.memory.arena import Arena
from engine.models.spec import ModelSpec


class StatePool:
    """Per row and recurrent layer: the convolution's last inputs and the gated delta state.

    conv       compute dtype [rows, layers, channels, conv_kernel - 1]
    recurrent  float32 [rows, layers, value_heads, key_dim, value_dim]
    A row is one run of bytes (recurrent part first), so rows at the end can be given back.
    """

    def __init__(
        self,
        spec: ModelSpec,
        rows: int,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
        arena: Arena | None = None,
    ) -> None:
        """In `arena`, which must be empty and large enough; without one, in an arena of its own."""
        if spec.gated_delta is None:
            raise ValueError(f"a model of family {spec.family} has no recurrent layers")
        delta = spec.gated_delta
        layers = len(spec.recurrent_layers)
        channels = 2 * delta.key_heads * delta.key_dim + delta.value_heads * delta.value_dim
        self.device = device or torch.device("cpu")
        self.dtype = dtype
        self._layer_index = {layer: i for i, layer in enumerate(spec.recurrent_layers)}
        self._recurrent_shape = (layers, delta.value_heads, delta.key_dim, delta.value_dim)
        self._conv_shape = (layers, channels, delta.conv_kernel - 1)
        self._recurrent_floats = layers * delta.value_heads * delta.key_dim * delta.value_dim
        conv_bytes = layers * channels * (delta.conv_kernel - 1) * dtype.itemsize
        # Whole float32 words, so that the next row's recurrent part is aligned.
        self.row_bytes = self._recurrent_floats * 4 + -(-conv_bytes // 4) * 4
        if arena is None:
            arena = Arena.reserve(rows * self.row_bytes, self.device)
        self._arena = arena
        self.rows = 0
        self.resize(rows)

    @property
    def nbytes(self) -> int:
        return self.rows * self.row_bytes

    @property
    def backed(self) -> int:
        """Memory of the device that the rows hold."""
        return self._arena.backed

    def resize(self, rows: int) -> None:
        """Grow (new rows are not reset), or give the last rows back. OutOfMemory if too many."""
        self._arena.resize(rows * self.row_bytes)
        self.rows = rows
        self._bytes = self._arena.view(0, (rows, self.row_bytes), torch.uint8)
        words = self._bytes.view(torch.float32)[:, : self._recurrent_floats]
        self._recurrent = words.view(rows, *self._recurrent_shape)
        tail = self._bytes[:, self._recurrent_floats * 4 :].view(self.dtype)
        layers, channels, taps = self._conv_shape
        self._conv = tail[:, : layers * channels * taps].view(rows, *self._conv_shape)

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Views of a model layer's states: conv [rows, channels, kernel - 1] and recurrent
        float32 [rows, value_heads, key_dim, value_dim]."""
        index = self._layer_index[layer]
        return self._conv[:, index], self._recurrent[:, index]

    def reset(self, row: int) -> None:
        """The state before a sequence's first token."""
        self._bytes[self._checked(row)].zero_()

    def snapshot(self, row: int) -> Tensor:
        """A copy of one row: uint8 [row_bytes], opaque to everyone but `restore`."""
        return self._bytes[self._checked(row)].clone()

    def restore(self, row: int, snapshot: Tensor) -> None:
        self._bytes[self._checked(row)] = snapshot.to(self.device)

    def _checked(self, row: int) -> int:
        if not 0 <= row < self.rows:
            raise IndexError(f"state row {row} is not one of {self.rows}")
        return row
