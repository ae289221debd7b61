"""Which blob goes into which slot when a step's experts are streamed: decisions, no bytes.

A streamed step sends every absent expert once, layer by layer, into slots that go round: free ones
and, if they do not hold two layers' absent experts, the coldest. A layer that has been computed
gives back as many slots as it took, less its share of those that were free. Which ones, its routes
say: of all the layer's experts, streamed and resident, those used most stay, so a prompt seeds what
is decoded after it, and no blob is sent for that.

An expert that c of a step's T tokens are routed to is as old, in turns of its layer, as one that
comes every T / c turns, unless it was younger before; what was known before is older by as many
turns as an average expert waits for its next one. What is given back stays where it is until its
slot is overwritten, as the oldest.

Everything happens on host tables, and a slot claims an expert only once its copy is on the way, so
tables may be written back at any time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.kernels.residency import (
    ABSENT,
    FILLS,
    HITS,
    MISSES,
    STEP,
    USED,
    Tables,
    going,
)

NEVER = 1 << 24
"""Age, in its layer's turns, of what nothing speaks for."""
START = -1
"""In place of a layer: slots that nothing reads when the step begins."""

_Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Group:
    """Experts of one layer, each on its way into a slot that was last read by one layer."""

    layer: int
    experts: _Ints
    """Ascending."""
    slots: _Ints
    after: int
    """Layer that must have been computed before the slots are overwritten, or START."""


class Ring:
    """The slots of one pool through one streamed step. Layers count as in the tables."""

    def __init__(self, tables: Tables, experts: _Ints) -> None:
        """`tables` in host memory, this ring's own from now on; `experts` of each layer."""
        self.tables = tables
        self._owner, self._used = tables.owner.numpy(), tables.used.numpy()
        self._slot_of = tables.slot_of.numpy()
        self._turns = tables.turns.numpy()
        self._locked = tables.locked.numpy() != 0
        self.layers, self._experts = self._slot_of.shape
        tables.counters[STEP] = 0
        self._exists = np.arange(self._experts) < experts[:, None]
        self._ages = np.full(self._slot_of.shape, NEVER)
        """What is known of each expert, resident or not, in turns of its layer."""
        held = self._slot_of != ABSENT
        turns = np.broadcast_to(self._turns[:, None], held.shape)
        ages = turns[held] - self._used[self._slot_of[held]]
        self._ages[held] = np.minimum(ages, NEVER)
        free, given_up = self._choose()
        self._give_up(given_up)
        self._missing = self._exists & (self._slot_of == ABSENT)
        self.absent = self._missing.sum(1)
        """Experts of each layer that are sent."""
        ring = np.sort(np.concatenate([free, given_up]))
        self._keeps = (self._exists & ~self._missing).sum(1) + self._shares(len(ring))
        """Slots of each layer after the step."""
        self.fits = len(ring) >= self.absent.max()
        """Whether some layer's experts can all be in slots at once, for every layer."""
        self._waiting: deque[tuple[int, _Ints]] = deque([(START, ring)] if len(ring) else ())
        """(layer that read them last, slots), in the order in which they are taken."""
        self._next = self._sent = 0
        """The layer whose experts go next, and how many of them are on their way."""
        self._pass_full_layers()
        self.retired = 0
        """Layers that are retired."""

    def _choose(self) -> tuple[_Ints, _Ints]:
        """Slots that nobody has, and the coldest, as many as make room for two layers."""
        order = going(self.tables, self.layers - 1)
        order = order[~self._locked[order]]
        empty = self._owner[order] == ABSENT
        free, coldest = order[empty], order[~empty]
        count = 0
        while True:
            lost = np.bincount(self._owner[coldest[:count]] // self._experts, minlength=self.layers)
            absent = (self._exists & (self._slot_of == ABSENT)).sum(1) + lost
            both = int((absent + np.roll(absent, -1)).max()) if self.layers > 1 else absent[0]
            lacking = both - len(free) - count
            if lacking <= 0 or count == len(coldest):
                return free, coldest[:count]
            count = min(count + lacking, len(coldest))

    def _give_up(self, slots: _Ints) -> None:
        self._slot_of.reshape(-1)[self._owner[slots]] = ABSENT
        self._count_used(-len(slots))
        self._owner[slots] = ABSENT

    def _count_used(self, more: int) -> None:
        self.tables.counters[:, USED] += more

    def _shares(self, slots: int) -> _Ints:
        """What each layer may keep of its absent experts: slots beyond two layers', by what each
        layer lacks, so that layers that hold the same get the same."""
        absent = self.absent
        ring = int((absent + np.roll(absent, -1)).max()) if self.layers > 1 else int(absent[0])
        total = int(absent.sum())
        spare = min(max(0, slots - ring), total)
        ends = np.cumsum(absent) * spare // max(1, total)
        return np.diff(ends, prepend=0)

    # --- sending -----------------------------------------------------------------------------

    def sends(self, layer: int) -> bool:
        """Whether all that the layer lacked is on its way."""
        return self._next > layer

    def take(self) -> Group | None:
        """What is to be sent next, or None before a layer is retired or when all is sent. Its slots
        claim nothing from now on; `claim` follows when the copy is on the way."""
        if self._next == self.layers or not self._waiting:
            return None
        layer = self._next
        experts = self._missing[layer].nonzero()[0][self._sent :]
        after, slots = self._waiting.popleft()
        if len(slots) > len(experts):
            self._waiting.appendleft((after, slots[len(experts) :]))
        count = min(len(experts), len(slots))
        self._sent += count
        self._pass_full_layers()
        self._clear(slots[:count])
        return Group(layer, experts[:count], slots[:count], after)

    def _pass_full_layers(self) -> None:
        while self._next < self.layers and self._sent == self.absent[self._next]:
            self._next, self._sent = self._next + 1, 0

    def _clear(self, slots: _Ints) -> None:
        owned = slots[self._owner[slots] != ABSENT]
        self._slot_of.reshape(-1)[self._owner[owned]] = ABSENT
        self._owner[slots] = ABSENT
        self._count_used(-len(owned))

    def claim(self, group: Group) -> None:
        """The group's copies are on the way: whoever waits for them finds its experts there."""
        self._owner[group.slots] = group.layer * self._experts + group.experts
        self._slot_of[group.layer, group.experts] = group.slots
        self._stamp(group.layer, group.slots, np.full(len(group.slots), NEVER))
        self.tables.counters[:, FILLS] += len(group.slots)
        self._count_used(len(group.slots))

    def slots_of(self, layer: int) -> NDArray[np.int32]:
        """Slots of the layer's experts, ABSENT for none."""
        slots: NDArray[np.int32] = self._slot_of[layer]
        return slots

    # --- what stays --------------------------------------------------------------------------

    def retire(self, layer: int, counts: NDArray[np.int32], tokens: int) -> None:
        """The layer's computation is on the way; `counts` are the routes to each of its experts, of
        `tokens`. The layers are retired in their order."""
        routed = counts > 0
        passed = self._experts * tokens // max(1, int(counts.sum()))
        self._turns[layer : layer + 1] += np.int32(passed)
        age = np.where(routed, tokens // np.maximum(counts, 1), NEVER)
        age = self._ages[layer] = np.minimum(self._ages[layer] + passed, age)
        missing = self._missing[layer]
        misses = int((routed & missing).sum())
        self.tables.counters[:, MISSES] += misses
        self.tables.counters[:, HITS] += int(routed.sum()) - misses
        experts = self._exists[layer].nonzero()[0]
        slots = self._slot_of[layer, experts].astype(np.int64)
        rank = np.where(self._locked[slots], -1, age[experts])
        # Among equals those that were there before stay.
        order = np.lexsort((experts, missing[experts], rank))
        keep, rest = np.split(order, [self._keeps[layer]])
        self._stamp(layer, slots[keep], age[experts[keep]])
        self._stamp(layer, slots[rest], np.full(len(rest), NEVER))
        if len(rest):
            self._waiting.append((layer, np.sort(slots[rest])))
        self.retired = layer + 1

    def seeds(self) -> Iterator[Group]:
        """After the last layer: what the ring's slots are to hold instead of the last layers'
        leftovers, the youngest of all that no slot keeps. Claim each before the next one."""
        ring = np.sort(np.concatenate([slots for _, slots in self._waiting] or [np.empty(0, int)]))
        self._waiting.clear()
        owners = self._owner[ring]
        left = self._slot_of == ABSENT
        left.reshape(-1)[owners[owners != ABSENT]] = True
        candidates = (left & self._exists & (self._ages < NEVER)).reshape(-1).nonzero()[0]
        ages = self._ages.reshape(-1)
        there = self._slot_of.reshape(-1) != ABSENT
        # Among equals those that are in a slot.
        order = np.lexsort((candidates, ~there[candidates], ages[candidates]))
        chosen = np.sort(candidates[order[: len(ring)]])
        stay = self._slot_of.reshape(-1)[chosen[there[chosen]]].astype(np.int64)
        self._restamp(stay)
        slots = np.setdiff1d(ring, stay, assume_unique=True)
        come = chosen[~there[chosen]]
        begin = 0
        for layer, count in enumerate(np.bincount(come // self._experts, minlength=self.layers)):
            if count:
                end = begin + count
                group = Group(layer, come[begin:end] % self._experts, slots[begin:end], START)
                self._clear(group.slots)
                yield group
                self._restamp(group.slots)
                begin = end

    def _restamp(self, slots: _Ints) -> None:
        owners = self._owner[slots]
        self._stamp(owners // self._experts, slots, self._ages.reshape(-1)[owners])

    def _stamp(self, layers: int | _Ints, slots: _Ints, ages: _Ints) -> None:
        # Of arrays: their differences wrap as turns do, those of scalars warn.
        turns = np.broadcast_to(self._turns[layers], ages.shape)
        self._used[slots] = turns - ages.astype(np.int32)
