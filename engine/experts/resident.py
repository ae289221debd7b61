"""Where every expert has a slot: numbers of experts become numbers of slots on the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor


class AllResident:
    """Tables of a residency in which nothing can miss. No call waits for the device but `hits` and
    `uses`, which are for when somebody asks."""

    def __init__(self, slots: Mapping[int, Sequence[int]], device: torch.device) -> None:
        """`slots` of the experts of each layer, in order; layers of fewer experts than others
        have fewer."""
        self._rows = {layer: row for row, layer in enumerate(slots)}
        width = max(map(len, slots.values()))
        table = [[*row, *[-1] * (width - len(row))] for row in slots.values()]
        self._slots = torch.tensor(table, dtype=torch.int64).to(device)
        self._used = torch.zeros_like(self._slots)
        """Step of each expert's last use, counted from 1."""
        self._step = 1
        self._called: set[int] = set()
        self._hits = torch.zeros((), dtype=torch.int64, device=device)

    def slots_of(self, layer: int, ids: Tensor) -> Tensor:
        """Slots of int64 ids [T, k] of this layer's experts. A layer's second call begins a step,
        if nobody said so."""
        if layer in self._called:
            self.end_step()
        self._called.add(layer)
        row = self._rows[layer]
        self._used[row].index_fill_(0, ids.reshape(-1), self._step)
        return self._slots[row][ids]

    def end_step(self) -> None:
        if self._called:
            self._hits += (self._used == self._step).sum()
            self._called.clear()
            self._step += 1

    def hits(self) -> int:
        """Distinct experts of every layer and step so far."""
        self.end_step()
        return int(self._hits)

    def uses(self, layer: int) -> Iterator[list[int]]:
        """Experts of a layer that were used, those of one step together, oldest step first."""
        used = self._used[self._rows[layer]].tolist()
        for step in sorted(set(used) - {0}):
            yield [expert for expert, last in enumerate(used) if last == step]
