"""Filling slots by a kernel that reads host memory itself: torch reference.

A copy in a captured graph has its addresses and its size for good. A kernel reads both from device
memory, where another kernel of the same graph has written which experts are missing. How long that
took, it writes there too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels.registry import operation

BLOCKS = 32
"""Programs of the kernel. A fixed grid, since a captured graph has one: few enough to leave the GPU
to what computes."""
NANOSECONDS, BYTES = range(2)
"""Columns of Gauge.totals."""


@dataclass(frozen=True)
class Gauge:
    """What a step's gathers took, on the device's clock. A layer is gathered once a step."""

    spans: Tensor
    """int64 [layers, BLOCKS, 2]: when each program of the layer's gather began and ended, in
    nanoseconds; 0 of those that had nothing to do."""
    nbytes: Tensor
    """int64 [layers]: what they copied."""
    totals: Tensor
    """int64 [2]: of all steps so far."""
    told: Tensor
    """int64 [2] in host memory, as of the last step that the device has done."""

    @staticmethod
    def empty(layers: int, device: torch.device) -> Gauge:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        told = torch.zeros(2, dtype=torch.int64, pin_memory=device.type == "cuda")
        return Gauge(zeros(layers, BLOCKS, 2), zeros(layers), zeros(2), told)


@dataclass(frozen=True)
class Banks:
    """Layers whose blobs have one stride, in host memory."""

    layers: tuple[Tensor, ...]
    """uint8 [experts, stride] each."""
    addresses: Tensor
    """int64 [layers], on the device: where its kernels find each layer's first byte; 0 for one that
    they cannot read, of which they must not be asked."""
    gauge: Gauge | None = None
    """None: nobody asks how long it takes."""
    pace: Tensor | None = None
    """float32 [1]: nanoseconds that a byte takes at least; None: as fast as the link is."""


@operation("gather_blobs", "engine.kernels.gpu.gather")
def gather_blobs(pool: Tensor, banks: Banks, layer: int, fills: Tensor, count: Tensor) -> None:
    """Copy blobs of one layer into slots: row i of `fills` is (expert, slot), for i < count.

    pool uint8 [slots, stride], contiguous; layer is a place in `banks`; fills int32 [most, 2],
    contiguous; count int32 [1]; all on one device. Slots are distinct. Later rows of `fills` are
    not read. The gauge and the pace are the GPU's.
    """
    for expert, slot in fills[: int(count)].tolist():
        pool[slot].copy_(banks.layers[layer][expert])


@operation("read_gauge", "engine.kernels.gpu.gather")
def read_gauge(spans: Tensor, gauge: Gauge) -> None:
    """Add what the step's gathers took to the totals, tell the host, and begin anew: `spans` is the
    gauge's own. A gather lasts from its first program's begin to its last one's end."""
    began, ended = spans.unbind(-1)
    worked = (began > 0).any(1)
    first = torch.where(began > 0, began, torch.iinfo(torch.int64).max).amin(1)
    gauge.totals[NANOSECONDS] += (ended.amax(1) - first)[worked].sum()
    gauge.totals[BYTES] += gauge.nbytes.sum()
    gauge.told.copy_(gauge.totals)
    spans.zero_()
    gauge.nbytes.zero_()
