"""One pool's experts streamed through a step: copies ahead of what is computed.

The host runs ahead of a GPU. What it needs to know of a layer, how often each expert was routed to,
comes by a copy that it waits for a layer later, when the GPU has that layer's work before it: then
it says what stays and sends what fits into the slots that were given back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.experts.copies import Copies, Mark
from engine.experts.residency import Residency
from engine.experts.ring import START, Group, Ring
from engine.experts.slots import SlotPool
from engine.experts.store import ExpertStore
from engine.formats.blob import BlobSpec
from engine.kernels.moe import moe_experts
from engine.kernels.residency import count_routes

Fill = Callable[[SlotPool, Tensor, list[tuple[int, int]]], None]


@dataclass(frozen=True)
class _Computed:
    """A layer whose computation was asked for."""

    tokens: int
    counted: Mark
    """Its counts are in host memory."""
    done: Mark


class PoolStream:
    """Of one pool; kept for all its streamed steps."""

    def __init__(
        self,
        store: ExpertStore,
        slots: SlotPool,
        residency: Residency,
        layers: list[int],
        copies: Copies,
    ) -> None:
        """`layers` of the pool, as the store counts them, in the residency's order."""
        self._store, self._slots, self._residency = store, slots, residency
        self._layers, self._copies = layers, copies
        self._experts = np.array([store.plan(layer).experts for layer in layers])
        self._device = slots.bank.device
        shape = len(layers), residency.experts
        pinned = self._device.type == "cuda"
        self._counts = torch.zeros(shape, dtype=torch.int32, pin_memory=pinned)
        self._tables = torch.zeros(shape, dtype=torch.int64, pin_memory=pinned)
        """Slots of each layer's experts, to be copied to the device."""
        self._ring: Ring | None = None
        self._over: Ring | None = None
        """Of a step that has ended, until its slots are seeded."""
        self._overlaps = self._seeds = False
        self._computed: list[_Computed] = []
        self._sent: dict[int, Mark] = {}
        """By layer: its experts are in their slots."""

    @property
    def active(self) -> bool:
        """Whether this step is streamed."""
        return self._ring is not None

    def begin(self, *, seeds: bool, overlaps: bool = True) -> bool:
        """Read the residency back and send what can be sent. False, and nothing is streamed, if
        there are fewer slots than one layer needs. `seeds`: see `seed`. Without `overlaps`, for
        measurements, a layer's experts are sent when it is computed."""
        self._over = None
        ring = Ring(self._residency.read(), self._experts)
        if not ring.fits:
            return False
        self._ring, self._seeds, self._overlaps = ring, seeds, overlaps
        self._computed.clear()
        self._sent.clear()
        self._copies.follow()
        if overlaps:
            self._send(ring, ring.layers - 1, fill=self._copies.measured)
        return True

    def _send(self, ring: Ring, last: int, fill: Fill | None = None) -> None:
        """What there are slots for, up to this layer; the first group by `fill`."""
        while not ring.sends(last) and (group := ring.take()) is not None:
            if group.after != START:
                self._copies.after(self._computed[group.after].done)
            self._copy(group, fill or self._copies.fill)
            fill = None
            ring.claim(group)
            if ring.sends(group.layer):
                self._sent[group.layer] = self._copies.copied()

    def _copy(self, group: Group, fill: Fill) -> None:
        fills = list(zip(group.experts.tolist(), group.slots.tolist(), strict=True))
        fill(self._slots, self._store.bank(self._layers[group.layer]), fills)

    def __call__(
        self, row: int, spec: BlobSpec, x: Tensor, ids: Tensor, weights: Tensor | None, singles: int
    ) -> Tensor:
        """As ExpertRuntime's call; `row` is the layer's place in the residency. The layers come in
        their order, each once."""
        ring = self._ring
        if ring is None or row != len(self._computed):
            raise RuntimeError(f"layer {row} of a streamed step is not its next one")
        counts = count_routes(ids, self._residency.experts)
        self._counts[row].copy_(counts, non_blocking=True)
        counted = self._copies.computed()
        if not self._overlaps:
            self._copies.follow()
            self._retire(ring, row)
        self._send(ring, row)
        self._copies.expect(self._sent.get(row))
        self._tables.numpy()[row] = ring.slots_of(row)
        table = self._tables[row].to(self._device, non_blocking=True)
        out = moe_experts(
            self._slots.bank, spec, x, table[ids], weights, singles, self._residency.experts
        )
        self._computed.append(_Computed(len(x), counted, self._copies.computed()))
        if self._overlaps:
            self._go_on(ring, row)
        return out

    def _go_on(self, ring: Ring, row: int) -> None:
        """Send what fits once earlier layers have given slots back, and if need be this one."""
        last = ring.layers - 1
        self._retire(ring, row)
        self._send(ring, last)
        if not ring.sends(min(row + 1, last)):
            self._retire(ring, row + 1)
            self._send(ring, last)

    def _retire(self, ring: Ring, below: int) -> None:
        """Layers below this one, as far as they have not been."""
        for row in range(ring.retired, below):
            computed = self._computed[row]
            self._copies.reach(computed.counted)
            ring.retire(row, self._counts.numpy()[row], computed.tokens)

    def end(self) -> None:
        """The step is over, or has failed: the residency tells what is in slots now."""
        ring, self._ring = self._ring, None
        if ring is None:
            return
        self._copies.lead()
        try:
            if len(self._computed) == ring.layers:
                self._retire(ring, ring.layers)
                self._over = ring if self._seeds else None
        finally:
            self._residency.write(ring.tables)

    def seed(self) -> bool:
        """After a prompt's last step, once its results are out: the ring's slots get the experts
        that were used most of those that no slot keeps. What is computed later waits for them.
        Whether there was such a step."""
        ring, self._over = self._over, None
        if ring is None:
            return False
        self._copies.follow()
        try:
            for group in ring.seeds():
                self._copy(group, self._copies.fill)
                ring.claim(group)
        finally:
            self._residency.write(ring.tables)
            self._copies.lead()
        return True
