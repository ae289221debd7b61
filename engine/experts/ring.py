"""Which blob goes into which slot when a step's experts are streamed: decisions, no bytes.

A streamed step sends every absent expert once, layer by layer, into slots that go round: free ones
and, if they do not hold two layers' absent experts, the coldest. A layer that has been computed
gives back as many slots as it took, less its share of those that were free. Which ones, its routes
say: of all the layer's experts, streamed and resident, those used most stay, so a prompt seeds what
is decoded after it, and no blob is sent for that.

What an expert is worth is its score, to which a chunk is one turn of many tokens
(`engine.kernels.expert_scores`). What is given back stays where it is until its slot is
overwritten.

Everything happens on host tables, and a slot claims an expert only once its copy is on the way, so
tables may be written back at any time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.kernels.expert_scores import ONE
from engine.kernels.residency import (
    ABSENT,
    FILLS,
    HITS,
    MISSES,
    USED,
    Tables,
    going,
    live_scores,
    residency_begin,
)

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
        residency_begin(tables.state, tables)
        self.tables = tables
        self._owner, self._slot_of = tables.owner.numpy(), tables.slot_of.numpy()
        self._locked = tables.locked.numpy() != 0
        self.layers, self._experts = self._slot_of.shape
        self._exists = np.arange(self._experts) < experts[:, None]
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
        self.tables.counts.numpy()[layer] = counts
        self.tables.tokens[layer] = tokens
        routed, missing = counts > 0, self._missing[layer]
        misses = int((routed & missing).sum())
        self.tables.counters[:, MISSES] += misses
        self.tables.counters[:, HITS] += int(routed.sum()) - misses
        experts = self._exists[layer].nonzero()[0]
        slots = self._slot_of[layer, experts].astype(np.int64)
        score = live_scores(self.tables, slice(layer, layer + 1))[0, experts]
        rank = np.where(self._locked[slots], ONE, score)
        # Among equals those that were there before stay.
        order = np.lexsort((experts, missing[experts], -rank))
        rest = order[self._keeps[layer] :]
        if len(rest):
            self._waiting.append((layer, np.sort(slots[rest])))
        self.retired = layer + 1

    def seeds(self) -> Iterator[Group]:
        """After the last layer: what the ring's slots are to hold instead of the last layers'
        leftovers, the hottest of all that no slot keeps. Claim each before the next one."""
        ring = np.sort(np.concatenate([slots for _, slots in self._waiting] or [np.empty(0, int)]))
        self._waiting.clear()
        owners = self._owner[ring]
        left = self._slot_of == ABSENT
        left.reshape(-1)[owners[owners != ABSENT]] = True
        scores = live_scores(self.tables).reshape(-1)
        candidates = (left.reshape(-1) & (scores > 0)).nonzero()[0]
        there = self._slot_of.reshape(-1) != ABSENT
        # Among equals those that are in a slot.
        order = np.lexsort((candidates, ~there[candidates], -scores[candidates]))
        chosen = np.sort(candidates[order[: len(ring)]])
        stay = self._slot_of.reshape(-1)[chosen[there[chosen]]].astype(np.int64)
        slots = np.setdiff1d(ring, stay, assume_unique=True)
        come = chosen[~there[chosen]]
        begin = 0
        for layer, count in enumerate(np.bincount(come // self._experts, minlength=self.layers)):
            if count:
                end = begin + count
                group = Group(layer, come[begin:end] % self._experts, slots[begin:end], START)
                self._clear(group.slots)
                yield group
                begin = end
