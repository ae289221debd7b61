"""The launch of one MoE layer: from routes to slots, and victims for what is missing.

Within a layer, what the step does not use goes in the order of its queue whatever happens, since a
turn leaves the order of scores as it was. Of what a layer used in this step, `lowest` names what
would go first. So a layer has two candidates, and the victim is the best of all layers' candidates,
as if every slot had been looked at. Nothing is written before all victims are known.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine.kernels.gpu.residency_begin import (
    EXPERT_BITS,
    EXPERT_MASK,
    FREE,
    FREE_TAKEN,
    NONE,
    SLOT_BITS,
    SLOT_MASK,
)
from engine.kernels.gpu.residency_scores import decay_of, magnitude, updated

_PASSED_BITS = tl.constexpr(10)
_PASSED_MASK = tl.constexpr((1 << 10) - 1)
_LAYER_SHIFT = tl.constexpr(22)
"""A candidate is (magnitude, how long ago the layer was routed, place, slot) in 8, 10, 2 and 20
bits."""
PLACES = tl.constexpr(4)
"""Of a layer's candidates: what comes next in its queue, and then the lowest that the step used."""
_USED = tl.constexpr(3)
_LAST = tl.constexpr(2)
"""Nothing that comes later in the queue goes before this one, whether it can go itself or not. So
when it is the best of all, the queues are looked at again, from it on."""


@triton.jit
def _candidate(score, passed, place, slot):
    key = ((magnitude(score) << _PASSED_BITS) | passed) << _LAYER_SHIFT
    return key | (place << SLOT_BITS) | slot


@triton.jit
def _candidates(
    head,
    low,
    now,
    passed,
    j,
    w,
    owner,
    counts,
    powers,
    choice,
    queue,
    EXPERTS: tl.constexpr,
):
    """int64 [layers, PLACES]"""
    place = head + w
    inside = (head < EXPERTS) & (place < EXPERTS) & (w != _USED)
    entry = tl.load(queue + j * EXPERTS + place, mask=inside, other=NONE)
    there = entry != NONE
    slot = ((entry >> EXPERT_BITS) & SLOT_MASK).to(tl.int32)
    row = j * EXPERTS + (entry & EXPERT_MASK).to(tl.int32)
    has_it = tl.load(owner + slot, mask=there, other=-1) == row
    is_used = tl.load(counts + row, mask=there & (now >= 0), other=0) > 0
    score = (entry >> (SLOT_BITS + EXPERT_BITS)).to(tl.int32)
    score = updated(score, tl.zeros_like(slot), now, decay_of(powers, choice, now))
    can_go = there & ((has_it & ~is_used) | (w == _LAST))
    key = tl.where(can_go, _candidate(score, passed, w, slot), NONE)
    of_used = _candidate((low >> SLOT_BITS).to(tl.int32), passed, w, low & SLOT_MASK)
    return tl.where(low != NONE, of_used, key)


@triton.jit
def _next_lowest(
    taken,
    j,
    slot_of,
    locked,
    scores,
    counts,
    tokens,
    powers,
    choice,
    LAYERS: tl.constexpr,
    EXPERTS: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    """What goes after `taken` of that which layer j used in this step."""
    e = tl.arange(0, BLOCK_E)
    row = j * EXPERTS + e
    inside = e < EXPERTS
    turn = tl.load(tokens + j)
    routes = tl.load(counts + row, mask=inside, other=0)
    slot = tl.load(slot_of + row, mask=inside & (routes > 0), other=-1)
    score = tl.load(scores + choice * LAYERS * EXPERTS + row, mask=inside, other=0)
    can_go = tl.load(locked + slot, mask=slot >= 0, other=1) == 0
    score = updated(score, routes, turn, decay_of(powers, choice, turn))
    key = (score.to(tl.int64) << SLOT_BITS) | slot
    return tl.min(tl.where(can_go & (key > taken), key, NONE), 0)


@triton.jit
def _victims(
    chosen,
    filled,
    missing,
    rank,
    layer,
    slot_of,
    owner,
    locked,
    scores,
    counts,
    tokens,
    powers,
    choice,
    queue,
    heads,
    lowest,
    LAYERS: tl.constexpr,
    EXPERTS: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    """(chosen, filled) with victims for ranks `filled` to `missing`, as far as there are any."""
    w = tl.arange(0, PLACES)[None, :]
    j = tl.arange(0, BLOCK_L)[:, None] + w * 0
    passed = (layer - j + LAYERS) % LAYERS
    now = tl.load(tokens + j, mask=j < LAYERS, other=-1)
    head = tl.load(heads + j, mask=j < LAYERS, other=EXPERTS)
    low = tl.load(lowest + j, mask=(j < LAYERS) & (w == _USED), other=NONE)
    more = filled < missing
    while more:
        key = _candidates(
            *(head, low, now, passed, j, w, owner, counts, powers, choice, queue),
            EXPERTS,
        )
        best = tl.min(key)
        place = (best >> SLOT_BITS).to(tl.int32) & (PLACES - 1)
        while (filled < missing) & (best != NONE) & (place != _LAST):
            slot = (best & SLOT_MASK).to(tl.int32)
            chosen = tl.where(rank == filled, slot, chosen)
            filled += 1
            following = NONE
            if place == _USED:
                far = (best >> _LAYER_SHIFT).to(tl.int32) & _PASSED_MASK
                home = (layer - far + LAYERS) % LAYERS
                taken = tl.min(tl.where(key == best, low, NONE))
                lower = _next_lowest(
                    *(taken, home, slot_of, locked, scores, counts, tokens, powers, choice),
                    *(LAYERS, EXPERTS, BLOCK_E),
                )
                low = tl.where(key == best, lower, low)
                score = (lower >> SLOT_BITS).to(tl.int32)
                following = _candidate(score, far, place, lower & SLOT_MASK)
                following = tl.where(lower == NONE, NONE, following)
            key = tl.where(key == best, following, key)
            best = tl.min(key)
            place = (best >> SLOT_BITS).to(tl.int32) & (PLACES - 1)
        head += tl.min(tl.where(key != NONE, w, _USED), 1)[:, None]
        more = (filled < missing) & (best != NONE)
    tl.debug_barrier()
    tl.store(heads + j, head, mask=(j < LAYERS) & (w == 0))
    tl.store(lowest + j, low, mask=(j < LAYERS) & (w == _USED))
    return chosen, filled


@triton.jit(do_not_specialize=["layer", "routes", "turn"])
def route_kernel(
    ids,
    slots,
    fills,
    count,
    slot_of,
    owner,
    locked,
    state,
    counters,
    scores,
    counts,
    tokens,
    chosen,
    powers,
    queue,
    heads,
    lowest,
    free,
    layer,
    routes,
    turn,
    COUNTED: tl.constexpr,
    LAYERS: tl.constexpr,
    EXPERTS: tl.constexpr,
    COUNTS: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    """`ids` are `routes` experts, or if COUNTED the routes to each of all experts."""
    e = tl.arange(0, BLOCK_E)
    inside = e < EXPERTS
    row = layer * EXPERTS
    # What does not depend on the ids is asked for at once.
    resident = tl.load(slot_of + row + e, mask=inside, other=-1)
    can_go = tl.load(locked + resident, mask=resident >= 0, other=0) == 0
    choice = tl.load(chosen + layer)
    score = tl.load(scores + choice * LAYERS * EXPERTS + row + e, mask=inside, other=0)
    decay = decay_of(powers, choice, turn)
    r = tl.arange(0, BLOCK_R)
    if COUNTED:
        routed = tl.load(ids + e, mask=inside, other=0)
    else:
        expert = tl.load(ids + r, mask=r < routes, other=-1).to(tl.int32)
        is_expert = (expert >= 0) & (expert < EXPERTS)
        found = tl.load(slot_of + row + expert, mask=is_expert, other=-1)
        routed = tl.histogram(tl.where(is_expert, expert, 0), BLOCK_E, mask=is_expert)
    tl.store(counts + row + e, routed, mask=inside)
    tl.store(tokens + layer, turn)
    score = updated(score, routed, turn, decay)
    wanted = routed > 0
    slot = tl.where(wanted, resident, -1)
    misses = wanted & (slot < 0)
    # Both in one sum: each is at most the number of experts, 2^12.
    both = tl.sum(tl.where(misses, 1, tl.where(wanted, 1 << 16, 0)), 0)
    missing, hits = both & 0xFFFF, both >> 16
    filled = 0
    claimed = 0
    if missing > 0:
        rank = tl.where(misses, tl.cumsum(misses.to(tl.int32), 0) - 1, -1)
        taken = tl.load(state + FREE_TAKEN)
        claimed = tl.minimum(tl.load(state + FREE) - taken, missing)
        filled = claimed
        chosen_slot = tl.load(free + taken + rank, mask=misses & (rank < claimed), other=-1)
        tl.debug_barrier()
        tl.store(state + FREE_TAKEN, taken + claimed)
        if filled < missing:
            chosen_slot, filled = _victims(
                *(chosen_slot, filled, missing, rank, layer, slot_of, owner, locked, scores),
                *(counts, tokens, powers, choice, queue, heads, lowest),
                *(LAYERS, EXPERTS, BLOCK_L, BLOCK_E),
            )
        got = chosen_slot >= 0
        evicted = tl.load(owner + chosen_slot, mask=got, other=-1)
        tl.debug_barrier()
        tl.store(slot_of + evicted, tl.full([BLOCK_E], -1, tl.int32), mask=evicted >= 0)
        tl.store(owner + chosen_slot, row + e, mask=got)
        tl.store(slot_of + row + e, chosen_slot, mask=got)
        tl.store(fills + 2 * rank, e, mask=got)
        tl.store(fills + 2 * rank + 1, chosen_slot, mask=got)
        slot = tl.where(misses, chosen_slot, slot)
        tl.debug_barrier()
        if not COUNTED:
            found = tl.load(slot_of + row + expert, mask=is_expert, other=-1)
    tl.store(count, filled)
    if COUNTED:
        tl.store(slots + e, slot, mask=inside)
    else:
        tl.store(slots + r, found, mask=r < routes)
    key = (score.to(tl.int64) << SLOT_BITS) | slot
    tl.store(lowest + layer, tl.min(tl.where((slot >= 0) & can_go, key, NONE), 0))
    column = tl.arange(0, COUNTS)
    of_call = tl.where(column == 0, hits, tl.where(column == 1, missing, filled))
    of_call = tl.where(column == 3, claimed, of_call).to(tl.int64)
    # Nobody else adds, and nobody waits for the sums.
    tl.atomic_add(counters + column, of_call, sem="relaxed")
    tl.atomic_add(counters + COUNTS + column, of_call, sem="relaxed")
