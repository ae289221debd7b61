"""Filling slots by a kernel that reads host memory itself: torch reference.

A copy in a captured graph has its addresses and its size for good. A kernel reads both from device
memory, where another kernel of the same graph has written which experts are missing.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.kernels.registry import operation


@dataclass(frozen=True)
class Banks:
    """Layers whose blobs have one stride, in host memory."""

    layers: tuple[Tensor, ...]
    """uint8 [experts, stride] each."""
    addresses: Tensor
    """int64 [layers], on the device: where its kernels find each layer's first byte; 0 for one that
    they cannot read, of which they must not be asked."""


@operation("gather_blobs", "engine.kernels.gpu.gather")
def gather_blobs(pool: Tensor, banks: Banks, fills: Tensor, count: Tensor) -> None:
    """Copy blobs into slots: row i of `fills` is (place in `banks`, expert, slot), for i < count.

    pool uint8 [slots, stride], contiguous; fills int32 [most, 3], contiguous; count int32 [1]; all
    on one device. Slots are distinct. Later rows of `fills` are not read.
    """
    for layer, expert, slot in fills[: int(count)].tolist():
        pool[slot].copy_(banks.layers[layer][expert])
