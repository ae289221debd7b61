"""The residency tables on a GPU: one launch when a step begins, one for each MoE layer.

A step begins with a queue for each layer, its slots in the order in which they would go. It holds
through the step: a slot that is used is skipped, and a layer's turn makes all its others older by
one, which leaves their order. So a layer's victims are the best of the queues' heads, and what they
would be by looking at every slot. Only where each slot left was used in this step or the last, in
pools about as small as what a step needs, do the kernels look at whole layers.

One block a layer: its warps share tables in device memory, with a barrier between what one writes
and others read.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.gpu.ahead import Ahead
from engine.kernels.residency import COUNTS, Route, Tables

BLOCK_FREE = 2048
WINDOW = 2
"""Entries of each queue that are looked at together."""
WARPS = 4

_CAPACITY = tl.constexpr(0)
_FREE_TAKEN = tl.constexpr(2)
_FREE = tl.constexpr(3)
_OLDEST = tl.constexpr(0x7FFFFFFF)
_NONE = tl.constexpr(2**63 - 1)
"""Above every key: (youth, how long ago the layer was routed, slot) in 31, 12 and 20 bits."""
_SLOT_BITS = tl.constexpr(20)
_SLOT_MASK = tl.constexpr((1 << 20) - 1)
_PASSED_BITS = tl.constexpr(12)
_PASSED_MASK = tl.constexpr((1 << 12) - 1)
MOST_SLOTS, MOST_LAYERS = 1 << 20, 1 << 12


@triton.jit
def _youth(age):
    return (-tl.maximum(age, 0) + _OLDEST).to(tl.int64)


@triton.jit
def begin_kernel(
    slot_of,
    turns,
    owner,
    used,
    locked,
    state,
    counters,
    queue,
    heads,
    began,
    free,
    LAYERS: tl.constexpr,
    EXPERTS: tl.constexpr,
    COUNTS: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_FREE: tl.constexpr,
):
    """Program p sorts layer p's slots into its queue; the last one lists what is free."""
    layer = tl.program_id(0)
    if layer < LAYERS:
        e = tl.arange(0, BLOCK_E)
        slot = tl.load(slot_of + layer * EXPERTS + e, mask=e < EXPERTS, other=-1)
        can_go = tl.load(locked + slot, mask=slot >= 0, other=1) == 0
        turn = tl.load(turns + layer)
        age = turn - tl.load(used + slot, mask=can_go, other=0)
        key = tl.where(can_go, (_youth(age) << _SLOT_BITS) | slot, _NONE)
        key = tl.sort(key)
        slot = tl.where(key == _NONE, -1, (key & _SLOT_MASK).to(tl.int32))
        tl.store(queue + layer * EXPERTS + e, slot, mask=e < EXPERTS)
        tl.store(heads + layer, 0)
        tl.store(began + layer, turn)
    else:
        column = tl.arange(0, COUNTS)
        tl.store(counters + column, tl.zeros([COUNTS], tl.int64))
        count = 0
        capacity = tl.load(state + _CAPACITY)
        for first in range(0, capacity, BLOCK_FREE):
            s = first + tl.arange(0, BLOCK_FREE)
            inside = s < capacity
            is_free = tl.load(owner + s, mask=inside, other=0) < 0
            is_free = is_free & (tl.load(locked + s, mask=inside, other=1) == 0)
            rank = count + tl.cumsum(is_free.to(tl.int32), 0) - 1
            tl.store(free + rank, s, mask=is_free)
            count += tl.sum(is_free.to(tl.int32), 0)
        tl.store(state + _FREE_TAKEN, 0)
        tl.store(state + _FREE, count)


@triton.jit
def _take(slot, slot_of, owner):
    """A victim has no owner from now on. The layer fills it when all are chosen."""
    evicted = tl.load(owner + slot)
    tl.debug_barrier()
    tl.store(owner + slot, -1)
    tl.store(slot_of + evicted, -1)


@triton.jit
def _from_queues(
    chosen,
    filled,
    missing,
    rank,
    layer,
    slot_of,
    turns,
    owner,
    used,
    queue,
    heads,
    began,
    LAYERS: tl.constexpr,
    EXPERTS: tl.constexpr,
    BLOCK_L: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """(chosen, filled) with victims of age 1 and more for ranks `filled` to `missing`."""
    j = tl.arange(0, BLOCK_L)
    there = j < LAYERS
    now = tl.load(turns + j, mask=there, other=0)
    was_routed = now != tl.load(began + j, mask=there, other=0)
    passed = ((layer - j + LAYERS) % LAYERS).to(tl.int64)
    head = tl.load(heads + j, mask=there, other=EXPERTS)
    more = filled < missing
    while more:
        tl.debug_barrier()
        w = tl.arange(0, WINDOW)[None, :]
        place = tl.minimum(head[:, None] + w, EXPERTS)
        inside = there[:, None] & (place < EXPERTS)
        slot = tl.load(queue + j[:, None] * EXPERTS + place, mask=inside, other=-1)
        home = tl.load(owner + slot, mask=slot >= 0, other=-1)
        own = (home >= 0) & (home // EXPERTS == j[:, None])
        age = now[:, None] - tl.load(used + slot, mask=own, other=0)
        can_go = own & (age > 0)
        key = (_youth(age) << _PASSED_BITS) | passed[:, None]
        key = tl.where(can_go, (key << _SLOT_BITS) | slot, _NONE)
        # What is taken, or used by its layer's turn, is past. What is of age 0 because its layer's
        # turn is still to come, and all behind it, may go after that.
        later = own & (age == 0) & ~was_routed[:, None]
        left = tl.sum((can_go | later).to(tl.int32), 1)
        goes_on = tl.max(tl.where(w == WINDOW - 1, slot, -1), 1) >= 0
        best = tl.min(tl.min(key, 1), 0)
        ends = tl.max((goes_on & (left == 0)).to(tl.int32), 0)
        while (filled < missing) & (ends == 0) & (best != _NONE):
            victim = (best & _SLOT_MASK).to(tl.int32)
            _take(victim, slot_of, owner)
            chosen = tl.where(rank == filled, victim, chosen)
            filled += 1
            key = tl.where(key == best, _NONE, key)
            left -= (passed == ((best >> _SLOT_BITS) & _PASSED_MASK)).to(tl.int32)
            best = tl.min(tl.min(key, 1), 0)
            ends = tl.max((goes_on & (left == 0)).to(tl.int32), 0)
        head += tl.min(tl.where((key != _NONE) | later, w, WINDOW), 1)
        more = (filled < missing) & (ends > 0)
    tl.debug_barrier()
    tl.store(heads + j, head, mask=there)
    return chosen, filled


@triton.jit
def _from_layers(
    chosen,
    filled,
    missing,
    rank,
    layer,
    turn,
    slot_of,
    owner,
    used,
    locked,
    LAYERS: tl.constexpr,
    EXPERTS: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    """(chosen, filled) where all that is left was used by its layer's last turn: the layer whose
    next turn is farthest first, its lowest slot first."""
    e = tl.arange(0, BLOCK_E)
    passed = 0
    while (filled < missing) & (passed < LAYERS):
        tl.debug_barrier()
        j = (layer - passed + LAYERS) % LAYERS
        slot = tl.load(slot_of + j * EXPERTS + e, mask=e < EXPERTS, other=-1)
        can_go = tl.load(locked + slot, mask=slot >= 0, other=1) == 0
        in_use = (j == layer) & (tl.load(used + slot, mask=can_go, other=0) == turn)
        slot = tl.where(can_go & ~in_use, slot, _OLDEST)
        best = tl.min(slot, 0)
        while (filled < missing) & (best != _OLDEST):
            _take(best, slot_of, owner)
            chosen = tl.where(rank == filled, best, chosen)
            filled += 1
            slot = tl.where(slot == best, _OLDEST, slot)
            best = tl.min(slot, 0)
        passed += 1
    return chosen, filled


@triton.jit(do_not_specialize=["layer", "routes"])
def route_kernel(
    ids,
    slots,
    fills,
    count,
    slot_of,
    routed,
    turns,
    owner,
    used,
    locked,
    state,
    counters,
    queue,
    heads,
    began,
    free,
    layer,
    routes,
    LAYERS: tl.constexpr,
    EXPERTS: tl.constexpr,
    COUNTS: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_L: tl.constexpr,
    WINDOW: tl.constexpr,
):
    r = tl.arange(0, BLOCK_R)
    expert = tl.load(ids + r, mask=r < routes, other=-1).to(tl.int32)
    is_expert = (expert >= 0) & (expert < EXPERTS)
    turn = tl.load(turns + layer) + 1
    row = layer * EXPERTS
    # Experts that several tokens share are marked several times, with the same number.
    tl.store(routed + row + expert, tl.zeros([BLOCK_R], tl.int32) + turn, mask=is_expert)
    tl.debug_barrier()
    tl.store(turns + layer, turn)
    e = tl.arange(0, BLOCK_E)
    inside = e < EXPERTS
    wanted = inside & (tl.load(routed + row + e, mask=inside, other=0) == turn)
    slot = tl.load(slot_of + row + e, mask=wanted, other=-1)
    tl.store(used + slot, tl.zeros([BLOCK_E], tl.int32) + turn, mask=slot >= 0)
    misses = wanted & (slot < 0)
    missing = tl.sum(misses.to(tl.int32), 0)
    hits = tl.sum(wanted.to(tl.int32), 0) - missing
    filled = 0
    claimed = 0
    if missing > 0:
        rank = tl.where(misses, tl.cumsum(misses.to(tl.int32), 0) - 1, -1)
        taken = tl.load(state + _FREE_TAKEN)
        claimed = tl.minimum(tl.load(state + _FREE) - taken, missing)
        filled = claimed
        chosen = tl.load(free + taken + rank, mask=misses & (rank < claimed), other=-1)
        tl.debug_barrier()
        tl.store(state + _FREE_TAKEN, taken + claimed)
        if filled < missing:
            chosen, filled = _from_queues(
                *(chosen, filled, missing, rank, layer, slot_of, turns, owner, used),
                *(queue, heads, began, LAYERS, EXPERTS, BLOCK_L, WINDOW),
            )
        if filled < missing:
            chosen, filled = _from_layers(
                *(chosen, filled, missing, rank, layer, turn, slot_of, owner, used, locked),
                *(LAYERS, EXPERTS, BLOCK_E),
            )
        tl.debug_barrier()
        got = chosen >= 0
        tl.store(owner + chosen, row + e, mask=got)
        tl.store(used + chosen, tl.zeros([BLOCK_E], tl.int32) + turn, mask=got)
        tl.store(slot_of + row + e, chosen, mask=got)
        tl.store(fills + 2 * rank, e, mask=got)
        tl.store(fills + 2 * rank + 1, chosen, mask=got)
        tl.debug_barrier()
    tl.store(count, filled)
    found = tl.load(slot_of + row + expert, mask=is_expert, other=-1)
    tl.store(slots + r, found, mask=r < routes)
    column = tl.arange(0, COUNTS)
    counts = tl.where(column == 0, hits, tl.where(column == 1, missing, filled))
    counts = tl.where(column == 3, claimed, counts).to(tl.int64)
    tl.store(counters + column, tl.load(counters + column) + counts)
    total = counters + COUNTS + column
    tl.store(total, tl.load(total) + counts)


def residency_begin(state: Tensor, tables: Tables) -> None:
    """As engine.kernels.residency.residency_begin, in one launch."""
    del state
    constants = _constants(*tables.slot_of.shape)
    begin_kernel[(constants["LAYERS"] + 1,)](
        *(tables.slot_of, tables.turns, tables.owner, tables.used, tables.locked, tables.state),
        *(tables.counters, tables.queue, tables.heads, tables.began, tables.free),
        **constants,
        BLOCK_FREE=BLOCK_FREE,
        num_warps=WARPS,
    )


def residency_route(ids: Tensor, layer: int, tables: Tables) -> Route:
    """As engine.kernels.residency.residency_route, in one launch that reads nothing back. Ids that
    are no experts are ABSENT."""
    constants = _constants(*tables.slot_of.shape)
    if constants["LAYERS"] > MOST_LAYERS or tables.owner.numel() > MOST_SLOTS:
        raise ValueError(f"no more than {MOST_LAYERS} layers and {MOST_SLOTS} slots")
    routes = ids.numel()
    most = min(routes, constants["EXPERTS"])
    slots = torch.empty(ids.shape, dtype=torch.int32, device=ids.device)
    fills = torch.empty((most, 2), dtype=torch.int32, device=ids.device)
    count = torch.empty(1, dtype=torch.int32, device=ids.device)
    route_kernel[(1,)](
        *(ids.contiguous(), slots, fills, count, tables.slot_of, tables.routed, tables.turns),
        *(tables.owner, tables.used, tables.locked, tables.state, tables.counters),
        *(tables.queue, tables.heads, tables.began, tables.free, layer, routes),
        **constants,
        **_route_constants(routes, constants["LAYERS"]),
        num_warps=WARPS,
    )
    return Route(slots, fills, count)


def _constants(layers: int, experts: int) -> dict[str, int]:
    return {
        "LAYERS": layers,
        "EXPERTS": experts,
        "COUNTS": COUNTS,
        "BLOCK_E": triton.next_power_of_2(experts),
    }


def _route_constants(routes: int, layers: int) -> dict[str, int]:
    return {
        "BLOCK_R": triton.next_power_of_2(max(1, routes)),
        "BLOCK_L": triton.next_power_of_2(layers),
        "WINDOW": WINDOW,
    }


def _ahead(model: str, layers: int, experts: int, routes: int) -> tuple[Ahead, Ahead]:
    tables = {
        **dict.fromkeys(("turns", "owner", "used", "locked", "state"), "*i32"),
        "counters": "*i64",
        **dict.fromkeys(("queue", "heads", "began", "free"), "*i32"),
    }
    calls = {"ids": "*i64", "slots": "*i32", "fills": "*i32", "count": "*i32", "slot_of": "*i32"}
    constants = _constants(layers, experts)
    return (
        Ahead(
            f"residency begin {model}",
            begin_kernel,
            {"slot_of": "*i32", **tables},
            {**constants, "BLOCK_FREE": BLOCK_FREE},
            warps=WARPS,
        ),
        Ahead(
            f"residency route {model} {routes} routes",
            route_kernel,
            {**calls, "routed": "*i32", **tables, "layer": "i32", "routes": "i32"},
            {**constants, **_route_constants(routes, layers)},
            warps=WARPS,
        ),
    )


AHEAD = (
    *_ahead("qwen3.6-35b-a3b", 40, 256, 8),
    *_ahead("qwen3.6-35b-a3b", 40, 256, 64),
    *_ahead("demo", 10, 16, 4),
)
