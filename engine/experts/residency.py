"""The residency of a pool: which expert is in which slot, and which slot goes next.

The tables, and the rule for victims, are those of `engine.kernels.residency`; `SlotPool` has the
bytes. What a step does (`begin_step`, `route`) reads nothing back from a GPU, so that a captured
graph can hold it. Everything else is for safe points, and waits for the device.

Every expert has a score, in a slot or not: how often its layer's tokens are routed to it, the
newest counting most. The lowest goes. How fast the past fades follows from the traffic.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.kernels.residency import (
    ABSENT,
    CAPACITY,
    COUNTS,
    GENERATION,
    MISSES,
    TOTAL,
    USED,
    Route,
    Tables,
    going,
    residency_begin,
    residency_route,
    residency_route_counts,
)

_HOST = torch.device("cpu")


@dataclass(frozen=True)
class Move:
    """A resize keeps a hot blob by copying it from a slot above the cut to one below."""

    source: int
    target: int


@dataclass(frozen=True)
class Counts:
    """Of routed experts; one counts once for each call that routes to it."""

    hits: int
    misses: int
    fills: int
    """Misses that got a slot."""
    used: int
    """Slots that hold an expert; of a step, how many more than before it."""


class Residency:
    """Slots of `layers` layers with `experts` experts each, all of one blob stride.

    Layers are numbered in the order in which a step routes them, each once at most.
    """

    def __init__(
        self,
        layers: int,
        experts: int,
        slots: int,
        *,
        most: int | None = None,
        device: torch.device = _HOST,
    ) -> None:
        """`most` slots can it grow to, `slots` unless given."""
        if min(layers, experts, slots) < 1:
            raise ValueError(f"no residency of {slots} slots for {layers} x {experts} experts")
        self.layers = layers
        self.experts = experts
        self.most = slots if most is None else most
        self.tables = Tables.empty(layers, experts, slots, self.most, device)
        self._locked: set[int] = set()
        self._counters = self.tables.counters
        if device.type == "cuda":
            self._counters = torch.zeros((2, COUNTS), dtype=torch.int64, pin_memory=True)
        self._expire()

    def _expire(self) -> None:
        """What was made when the step began tells of other tables: no layer is left to route."""
        self._routed = set(range(self.layers))

    @property
    def locked(self) -> int:
        """Slots that are locked; to ask waits for nothing."""
        return len(self._locked)

    @property
    def slots(self) -> int:
        return int(self.tables.state[CAPACITY])

    @property
    def generation(self) -> int:
        """How often the pool was resized."""
        return int(self.tables.state[GENERATION])

    def slot_of(self, layer: int, expert: int) -> int:
        """Where this expert lies, ABSENT for nowhere; to ask is no use of it, as `route` is."""
        return int(self.tables.slot_of[layer, expert])

    def resident(self, layer: int) -> list[int]:
        """Experts of this layer that have a slot, ascending."""
        return (self.tables.slot_of[layer] != ABSENT).nonzero().flatten().tolist()

    def begin_step(self) -> None:
        """Before the step's first layer."""
        residency_begin(self.tables.state, self.tables)
        self._routed = set()

    def route(self, layer: int, ids: Tensor) -> Route:
        """Slots of the experts that `ids` [tokens, k] name, and what the caller has to fill: see
        `engine.kernels.residency.residency_route`. Experts of a layer that needs more than can be
        had are ABSENT; to route them again, once the others are computed, begins another step."""
        self._take_turn(layer)
        return residency_route(ids, layer, self.tables)

    def route_counts(self, layer: int, counts: Tensor, tokens: int) -> Route:
        """As `route`, by how many of `tokens` are routed to each expert (int32 [experts]); slots
        are those of all experts. 0 tokens say that these experts are routed again, or are fetched
        before they are routed to: no score changes."""
        self._take_turn(layer)
        return residency_route_counts(counts, layer, tokens, self.tables)

    def _take_turn(self, layer: int) -> None:
        if layer in self._routed:
            self.begin_step()
        self._routed.add(layer)

    def forgive(self, misses: int) -> None:
        """So many of the misses so far do not count: experts that found no slot and are routed
        again are one miss each, and a pool that is filled before its first step missed nothing."""
        self.tables.counters[TOTAL, MISSES] -= misses

    def publish(self) -> None:
        """Let `counts` tell of what was routed so far, once the device is there: it is a copy that
        the host does not wait for, and that a captured graph can hold."""
        self._counters.copy_(self.tables.counters, non_blocking=True)

    def counts(self, row: int = TOTAL) -> Counts:
        """Of the step (STEP) or in total: as last published, in host memory as of now. It waits for
        nothing."""
        return Counts(*self._counters[row].tolist())

    def lock(self, slot: int) -> None:
        """Keep this slot from being a victim until it is unlocked."""
        self._set_locked(slot, True)

    def unlock(self, slot: int) -> None:
        self._set_locked(slot, False)

    def _set_locked(self, slot: int, locked: bool) -> None:
        if not 0 <= slot < self.slots:
            raise ValueError(f"slot {slot} is not one of {self.slots}")
        self.tables.locked[slot] = locked
        (self._locked.add if locked else self._locked.discard)(slot)
        self._expire()

    def release(self, layer: int, expert: int) -> None:
        """Forget this expert, if it is resident: its slot is free and goes first."""
        slot = self.slot_of(layer, expert)
        if slot != ABSENT:
            self.tables.slot_of[layer, expert] = ABSENT
            self.tables.owner[slot] = ABSENT
            self.tables.counters[TOTAL, USED] -= 1
            self._expire()

    def resize(self, slots: int) -> list[Move]:
        """Have this many slots from now on; a shrink drops what would be the next victims.

        The moves are to be copied before memory above the cut is given back; no source is another
        one's target. Raises ValueError if a locked slot is above the cut, and for more slots than
        `most` or fewer than 1.
        """
        if not 1 <= slots <= self.most:
            raise ValueError(f"a pool cannot have {slots} slots")
        with self._in_host_memory() as tables:
            owner, slot_of = tables.owner.numpy(), tables.slot_of.view(-1).numpy()
            if tables.locked[slots:].any():
                raise ValueError("a locked slot is above the cut")
            moves = self._moves(tables, slots)
            for move in moves:
                if owner[move.target] != ABSENT:
                    slot_of[owner[move.target]] = ABSENT
                owner[move.target] = owner[move.source]
                slot_of[owner[move.source]] = move.target
                owner[move.source] = ABSENT
            slot_of[slot_of >= slots] = ABSENT
            owner[slots:] = ABSENT
            tables.state[CAPACITY] = slots
            tables.state[GENERATION] += 1
            tables.counters[TOTAL, USED] = int((owner != ABSENT).sum())
        return moves

    def _moves(self, tables: Tables, slots: int) -> list[Move]:
        owner, locked = tables.owner.numpy(), tables.locked.numpy() != 0
        # Between steps: the last layer was the last one.
        order = going(tables, self.layers - 1)
        coldest = order[owner[order] != ABSENT]
        # Locked slots stay where they are, so they take a place whether they are hot or not.
        coldest = np.concatenate([coldest[~locked[coldest]], coldest[locked[coldest]]])
        free = (owner[:slots] == ABSENT).nonzero()[0]
        blocked = int(locked[free].sum())
        keep = coldest[max(0, len(coldest) - (slots - blocked)) :]
        sources = np.sort(keep[keep >= slots])
        # Empty slots first: an expert that is not among the hottest may still stay.
        targets = [*free[~locked[free]], *coldest[(coldest < slots) & ~np.isin(coldest, keep)]]
        return [
            Move(int(source), int(target)) for source, target in zip(sources, targets, strict=False)
        ]

    @contextmanager
    def _in_host_memory(self) -> Iterator[Tables]:
        """The tables, to be changed."""
        tables = self.read()
        yield tables
        self.write(tables)

    def read(self) -> Tables:
        """A copy of the tables in host memory."""
        return self.tables.clone(_HOST)

    def write(self, tables: Tables) -> None:
        """The tables become what these say, which were read since they changed last."""
        self.tables.copy_(tables)
        self._expire()
