"""Which expert is in which slot, on the device: its tables, and the rule for victims.

The tables are tensors that a step's kernels read and write without the host: a captured graph can
hold them, and a resize changes their content, never their addresses. In host memory the functions
below work on the same tables.

The rule. Free slots go first, the lowest one before others. Then the oldest: a slot's age is how
often its own layer was routed without it. It is not how long ago the slot was used, since in the
middle of a step the layers still to come would look old for no other reason than that their turn is
next. Among equals the one whose layer's next turn is farthest goes (this layer first, then the one
before it, and so on round), then the lowest slot. Slots that are locked, or routed to by the call
in progress, stay.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.kernels.registry import operation

ABSENT = -1
CAPACITY, GENERATION, FREE_TAKEN, FREE = range(4)
"""Places in Tables.state. The last two are the kernels': how many of `free` are taken, and are."""
STATES = 4
HITS, MISSES, FILLS, USED = range(4)
"""Columns of Tables.counters. USED counts slots that a step's fills made used, in the first row;
in the second all that are."""
COUNTS = 4
STEP, TOTAL = range(2)
"""Rows of Tables.counters."""

_Ints = NDArray[np.int32]


@dataclass(frozen=True)
class Tables:
    """int32 tensors of one device, but for the counters. `most` slots can ever be."""

    slot_of: Tensor
    """[layers, experts]: ABSENT for experts that have no slot."""
    routed: Tensor
    """[layers, experts]: number of the layer's turn that routed to it last."""
    turns: Tensor
    """[layers]: how often each was routed."""
    owner: Tensor
    """[most]: layer * experts + expert, ABSENT for a free slot."""
    used: Tensor
    """[most]: number of the owner's layer's turn that used the slot last. Differences count: after
    2^31 turns numbers wrap."""
    locked: Tensor
    """[most]: 1 for slots that are no victims."""
    state: Tensor
    """[STATES]"""
    counters: Tensor
    """int64 [2, COUNTS] of the step and in total. An expert counts once a call that routes to it;
    a miss that found no slot is no fill."""
    queue: Tensor
    """[layers, experts]: each layer's slots in the order in which they would go when the step
    began, then ABSENT. This and what follows belongs to the kernels for GPUs."""
    heads: Tensor
    """[layers]: entries of `queue` that are past."""
    began: Tensor
    """[layers]: `turns` when the step began."""
    free: Tensor
    """[most]: slots that were free when the step began."""

    @staticmethod
    def empty(layers: int, experts: int, slots: int, most: int, device: torch.device) -> Tables:
        """Of a pool without residents."""

        def full(value: int, *shape: int) -> Tensor:
            return torch.full(shape, value, dtype=torch.int32, device=device)

        state = full(0, STATES)
        state[CAPACITY] = slots
        return Tables(
            slot_of=full(ABSENT, layers, experts),
            routed=full(0, layers, experts),
            turns=full(0, layers),
            owner=full(ABSENT, most),
            used=full(0, most),
            locked=full(0, most),
            state=state,
            counters=torch.zeros((2, COUNTS), dtype=torch.int64, device=device),
            queue=full(ABSENT, layers, experts),
            heads=full(0, layers),
            began=full(0, layers),
            free=full(0, most),
        )

    def clone(self, device: torch.device) -> Tables:
        """Copies on this device."""
        return Tables(
            **{each.name: getattr(self, each.name).to(device, copy=True) for each in fields(self)}
        )

    def copy_(self, other: Tables) -> None:
        """Take the content of other tables of the same shapes."""
        for each in fields(self):
            getattr(self, each.name).copy_(getattr(other, each.name))


@dataclass(frozen=True)
class Route:
    """Where one call's experts lie, on the device of the tables."""

    slots: Tensor
    """int32, shaped as the ids: ABSENT where the id is, or the expert got no slot."""
    fills: Tensor
    """int32 [n, 2]: the layer's expert, and the slot that its blob is to be copied into; valid up
    to `count`."""
    count: Tensor
    """int32 [1]"""


@operation("residency_begin", cuda="engine.kernels.gpu.residency")
def residency_begin(state: Tensor, tables: Tables) -> None:
    """A step begins: `state` is the tables' own. Between this and the next, a layer is routed once
    at most, and nothing but `residency_route` changes the tables."""
    del state
    tables.counters[STEP] = 0


@operation("residency_route", cuda="engine.kernels.gpu.residency")
def residency_route(ids: Tensor, layer: int, tables: Tables) -> Route:
    """Slots of the experts that `ids` (int32 or int64, of any shape) name, with victims for misses.

    Ids below 0 are passed over. Every hit is marked as used before the first miss takes a victim;
    misses are served in the order of experts. Those that find none stay ABSENT.
    Raises ValueError for ids that are no experts; on a GPU they count as below 0.
    """
    slot_of = tables.slot_of.numpy()[layer]
    owner, used = tables.owner.numpy(), tables.used.numpy()
    wanted = np.unique(ids.numpy())
    wanted = wanted[wanted >= 0]
    if wanted.size and wanted[-1] >= slot_of.size:
        raise ValueError(f"{wanted[-1]} is not one of {slot_of.size} experts")
    turns = tables.turns.numpy()
    turns[layer] += 1
    tables.routed.numpy()[layer, wanted] = turns[layer]
    slots = slot_of[wanted]
    used[slots[slots >= 0]] = turns[layer]
    filled = missing = wanted[slots < 0]
    claimed = 0
    if missing.size:
        order = going(tables, layer)
        in_use = (owner[order] // slot_of.size == layer) & (used[order] == turns[layer])
        taken = order[~in_use & (tables.locked.numpy()[order] == 0)][: missing.size]
        filled, evicted = missing[: taken.size], owner[taken]
        claimed = int((evicted == ABSENT).sum())
        tables.slot_of.numpy().reshape(-1)[evicted[evicted != ABSENT]] = ABSENT
        owner[taken], used[taken] = layer * slot_of.size + filled, turns[layer]
        slot_of[filled] = taken
    counts = wanted.size - missing.size, missing.size, filled.size, claimed
    tables.counters.numpy()[:] += counts
    found = np.where(ids.numpy() < 0, ABSENT, slot_of[ids.numpy()])
    fills = np.stack([filled, slot_of[filled]], axis=1)
    return Route(
        torch.from_numpy(found.astype(np.int32)),
        torch.from_numpy(fills.astype(np.int32)),
        torch.tensor([filled.size], dtype=torch.int32),
    )


def going(tables: Tables, layer: int) -> NDArray[np.intp]:
    """All slots of tables in host memory in the order in which they would go, locked or not, if
    this layer were routed now."""
    capacity = int(tables.state[CAPACITY])
    owner, used = tables.owner.numpy()[:capacity], tables.used.numpy()[:capacity]
    layers, experts = tables.slot_of.shape
    home = owner // experts
    youth = np.iinfo(np.int32).max - (tables.turns.numpy()[home] - used).astype(np.int64)
    order = (youth * layers + (layer - home) % layers) * capacity + np.arange(capacity)
    return np.argsort(np.where(owner == ABSENT, np.arange(capacity) - capacity, order))
