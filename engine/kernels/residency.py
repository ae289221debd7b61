"""Which expert is in which slot, on the device: its tables, and the rule for victims.

The tables are tensors that a step's kernels read and write without the host: a captured graph can
hold them, and a resize changes their content, never their addresses. In host memory the functions
below work on the same tables.

The rule. Free slots go first, the lowest number before others. Then the expert goes whose score
(`expert_scores.py`) has the lowest power of two. Scores of layers that were routed in this step
count it, those of layers still to come do not: so no layer looks cold only because its turn is
next, and what the step itself used goes too where its score is low. Equals go in this order:

1. the one whose layer's next turn is farthest: this layer's, then the one's before it, and so on;
2. one that the step did not use before one that it did;
3. the lower score (of what the step did not use, that with which it began);
4. the lowest slot.

Slots that are locked, or routed to by the call in progress, stay.

When a step begins, scores and credits take account of what was routed since the last one began, and
the half-life is chosen by the credits of before that.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.kernels import expert_scores
from engine.kernels.expert_scores import HALF_LIVES
from engine.kernels.registry import operation

ABSENT = -1
NOT_ROUTED = -1
"""In Tables.tokens: the layer's turn is still to come."""
CAPACITY, GENERATION, FREE_TAKEN, FREE = range(4)
"""Places in Tables.state. The last two are the kernels': how many of `free` are taken, and are."""
STATES = 4
HITS, MISSES, FILLS, USED = range(4)
"""Columns of Tables.counters. USED counts slots that a step's fills made used, in the first row;
in the second all that are."""
COUNTS = 4
STEP, TOTAL = range(2)
"""Rows of Tables.counters."""

_Longs = NDArray[np.int64]


@dataclass(frozen=True)
class Tables:
    """int32 tensors of one device unless said otherwise. `most` slots can ever be."""

    slot_of: Tensor
    """[layers, experts]: ABSENT for experts that have no slot."""
    owner: Tensor
    """[most]: layer * experts + expert, ABSENT for a free slot."""
    locked: Tensor
    """[most]: 1 for slots that are no victims."""
    state: Tensor
    """[STATES]"""
    counters: Tensor
    """int64 [2, COUNTS] of the step and in total. An expert counts once a call that routes to it;
    a miss that found no slot is no fill."""
    scores: Tensor
    """[half-lives, layers, experts]: as of when the step began."""
    counts: Tensor
    """[layers, experts]: routes of the layer's last turn."""
    before: Tensor
    """[layers, experts]: 1 for experts of the last turn that the scores know of."""
    tokens: Tensor
    """[layers]: of the layer's turn in this step, whose `counts` the scores do not know yet. 0
    where they were counted before, NOT_ROUTED before the turn."""
    steps: Tensor
    """[layers]: number of the step, the same for all. Numbers wrap."""
    chosen: Tensor
    """[layers]: index of the half-life in use, the same for all."""
    credits: Tensor
    """int64 [2, layers, half-lives]: by the step's number, even or odd, what its choice went by."""
    powers: Tensor
    """[POWERS]: expert_scores.powers. This and what follows belongs to the kernels for GPUs."""
    queue: Tensor
    """int64 [layers, experts]: each layer's slots in the order in which they would go when the step
    began, as (score, slot, expert)."""
    heads: Tensor
    """[layers]: entries of `queue` that are past."""
    lowest: Tensor
    """int64 [layers]: (score, slot) of what would go first of that which the layer used in this
    step."""
    free: Tensor
    """[most]: slots that were free when the step began."""

    @staticmethod
    def empty(layers: int, experts: int, slots: int, most: int, device: torch.device) -> Tables:
        """Of a pool without residents."""

        def full(value: int, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.full(shape, value, dtype=dtype, device=device)

        state = full(0, STATES)
        state[CAPACITY] = slots
        return Tables(
            slot_of=full(ABSENT, layers, experts),
            owner=full(ABSENT, most),
            locked=full(0, most),
            state=state,
            counters=full(0, 2, COUNTS, dtype=torch.int64),
            scores=full(0, len(HALF_LIVES), layers, experts),
            counts=full(0, layers, experts),
            before=full(0, layers, experts),
            tokens=full(NOT_ROUTED, layers),
            steps=full(0, layers),
            chosen=full(0, layers),
            credits=full(0, 2, layers, len(HALF_LIVES), dtype=torch.int64),
            powers=torch.from_numpy(expert_scores.powers()).to(device),
            queue=full(0, layers, experts, dtype=torch.int64),
            heads=full(0, layers),
            lowest=full(0, layers, dtype=torch.int64),
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
    """int32, shaped as the ids, or [experts] for counts: ABSENT where the id is below 0, the count
    is 0, or the expert got no slot."""
    fills: Tensor
    """int32 [n, 2]: the layer's expert, and the slot that its blob is to be copied into; valid up
    to `count`."""
    count: Tensor
    """int32 [1]"""


def count_routes(ids: Tensor, experts: int) -> Tensor:
    """int32 [experts]: how many of `ids`, int64 and all experts, name each. On a GPU, unlike
    bincount, it waits for nothing."""
    counts = torch.zeros(experts, dtype=torch.int32, device=ids.device)
    flat = ids.reshape(-1)
    return counts.scatter_add_(0, flat, torch.ones_like(flat, dtype=torch.int32))


@operation("residency_begin", cuda="engine.kernels.gpu.residency")
def residency_begin(state: Tensor, tables: Tables) -> None:
    """A step begins: `state` is the tables' own. Between this and the next, a layer is routed once
    at most, and nothing but `residency_route` changes the tables."""
    layers, step = tables.slot_of.shape[0], int(tables.steps[0])
    now, after = tables.credits.numpy()[step % 2], tables.credits.numpy()[1 - step % 2]
    chosen = expert_scores.choose(now.sum(0), int(tables.chosen[0]))
    room = (int(state[CAPACITY]) + layers // 2) // layers
    turned = (tables.tokens > 0).numpy()
    scores, tokens, counts, before = (
        each.numpy()[..., turned, :].astype(np.int64)
        for each in (tables.scores, tables.tokens[:, None], tables.counts, tables.before)
    )
    after[:] = now
    after[turned] = expert_scores.credited(now[turned].T, scores, before, counts, room).T
    decayed = np.stack([expert_scores.decay(each, tokens) for each in HALF_LIVES])
    tables.scores.numpy()[:, turned] = expert_scores.updated(scores, counts, tokens, decayed)
    tables.before.numpy()[turned] = counts > 0
    tables.tokens.fill_(NOT_ROUTED)
    tables.steps.add_(1)
    tables.chosen.fill_(chosen)
    tables.counters[STEP] = 0


@operation("residency_route", cuda="engine.kernels.gpu.residency")
def residency_route(ids: Tensor, layer: int, tables: Tables) -> Route:
    """Slots of the experts that `ids` (int32 or int64 [tokens, k]) name, with victims for misses.

    Ids below 0 are passed over. Every hit is safe before the first miss takes a victim; misses are
    served in the order of experts. Those that find none stay ABSENT.
    Raises ValueError for ids that are no experts; on a GPU they count as below 0.
    """
    experts = tables.slot_of.shape[1]
    wanted = ids[ids >= 0]
    if wanted.numel() and int(wanted.max()) >= experts:
        raise ValueError(f"{int(wanted.max())} is not one of {experts} experts")
    counts = torch.bincount(wanted, minlength=experts).to(torch.int32)
    route = residency_route_counts(counts, layer, ids.shape[0], tables)
    slots = torch.where(ids < 0, ABSENT, route.slots[ids.clamp(min=0)])
    return Route(slots, route.fills, route.count)


@operation("residency_route_counts", cuda="engine.kernels.gpu.residency")
def residency_route_counts(counts: Tensor, layer: int, tokens: int, tables: Tables) -> Route:
    """As residency_route, by the number of `tokens` that are routed to each expert (int32
    [experts]). With 0 tokens the experts get slots, and no score changes: for those that found none
    in an earlier call, and for what is fetched before it is routed to."""
    slot_of, owner = tables.slot_of.numpy()[layer], tables.owner.numpy()
    tables.counts[layer] = counts
    tables.tokens[layer] = tokens
    wanted = counts.numpy() > 0
    missing = (wanted & (slot_of == ABSENT)).nonzero()[0]
    filled, claimed = missing, 0
    if missing.size:
        order = going(tables, layer)
        home, expert = np.divmod(owner[order], slot_of.size)
        stays = (home == layer) & wanted[expert] | (tables.locked.numpy()[order] != 0)
        taken = order[~stays][: missing.size]
        filled, evicted = missing[: taken.size], owner[taken]
        claimed = int((evicted == ABSENT).sum())
        tables.slot_of.numpy().reshape(-1)[evicted[evicted != ABSENT]] = ABSENT
        owner[taken] = layer * slot_of.size + filled
        slot_of[filled] = taken
    hits = int(wanted.sum()) - missing.size
    tables.counters.numpy()[:] += hits, missing.size, filled.size, claimed
    fills = np.stack([filled, slot_of[filled]], axis=1)
    return Route(
        torch.from_numpy(np.where(wanted, slot_of, np.int32(ABSENT))),
        torch.from_numpy(fills.astype(np.int32)),
        torch.tensor([filled.size], dtype=torch.int32),
    )


def live_scores(tables: Tables, layers: slice = slice(None)) -> _Longs:
    """[layers, experts]: of tables in host memory, with what was routed since the step began."""
    chosen = int(tables.chosen[0])
    began, counts, tokens = (
        each.numpy()[layers].astype(np.int64)
        for each in (tables.scores[chosen], tables.counts, tables.tokens[:, None])
    )
    decayed = expert_scores.decay(HALF_LIVES[chosen], np.maximum(tokens, 0))
    return expert_scores.updated(began, counts, tokens, decayed)


def going(tables: Tables, layer: int) -> NDArray[np.intp]:
    """All slots of tables in host memory in the order in which they would go, locked or not, if
    this layer were routed now."""
    layers, experts = tables.slot_of.shape
    owner = tables.owner.numpy()[: int(tables.state[CAPACITY])]
    home = owner // experts
    is_used = (tables.tokens.numpy() != NOT_ROUTED)[:, None] & (tables.counts.numpy() > 0)
    # Free slots, with -1 for owner, are equal in all but their number.
    used = is_used.reshape(-1)[owner]
    began = tables.scores.numpy()[int(tables.chosen[0])].reshape(-1)[owner]
    live = live_scores(tables).reshape(-1)[owner]
    magnitude = np.where(owner == ABSENT, -1, expert_scores.magnitude(live))
    first = (magnitude * layers + (layer - home) % layers) * 2 + used
    then = np.where(used, live, began.astype(np.int64)) * owner.size + np.arange(owner.size)
    return np.lexsort((then, first))
