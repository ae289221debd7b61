"""The launch that begins a step: scores, credits, the choice of a half-life, and the queues."""

from __future__ import annotations

import triton
import triton.language as tl

from engine.kernels import expert_scores
from engine.kernels.gpu.residency_scores import ONE, decay_of, updated

CAPACITY = tl.constexpr(0)
FREE_TAKEN = tl.constexpr(2)
FREE = tl.constexpr(3)
NONE = tl.constexpr(2**63 - 1)
"""Above every key."""
EXPERT_BITS, EXPERT_MASK = tl.constexpr(12), tl.constexpr((1 << 12) - 1)
SLOT_BITS, SLOT_MASK = tl.constexpr(20), tl.constexpr((1 << 20) - 1)
"""An entry of a queue is (score, slot, expert) in 30, 20 and 12 bits."""
_RANK_BITS = tl.constexpr(expert_scores.FRACTION + 1)
_CREDIT_BITS = tl.constexpr(expert_scores.CREDIT_BITS)
_CREDIT_KEPT = tl.constexpr(expert_scores.CREDIT_KEPT)
_HEAD_START = tl.constexpr(1 << expert_scores.HEAD_START_BITS)
_MARGIN = tl.constexpr(1 << expert_scores.HYSTERESIS_BITS)


@triton.jit
def begin_kernel(
    slot_of,
    owner,
    locked,
    state,
    counters,
    scores,
    counts,
    before,
    tokens,
    steps,
    chosen,
    earned,
    powers,
    queue,
    heads,
    lowest,
    free,
    LAYERS: tl.constexpr,
    EXPERTS: tl.constexpr,
    COUNTS: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_FREE: tl.constexpr,
    HALF_LIVES: tl.constexpr,
):
    """Program p is layer p's; the last one lists what is free."""
    layer = tl.program_id(0)
    if layer < LAYERS:
        choice = _learn(
            *(layer, state, scores, counts, before, tokens, steps, chosen, earned, powers),
            *(LAYERS, EXPERTS, BLOCK_L, BLOCK_E, HALF_LIVES),
        )
        e = tl.arange(0, BLOCK_E)
        inside = e < EXPERTS
        slot = tl.load(slot_of + layer * EXPERTS + e, mask=inside, other=-1)
        can_go = tl.load(locked + slot, mask=slot >= 0, other=1) == 0
        tl.debug_barrier()
        row = (choice * LAYERS + layer) * EXPERTS
        score = tl.load(scores + row + e, mask=inside, other=0).to(tl.int64)
        key = (((score << SLOT_BITS) | slot) << EXPERT_BITS) | e
        key = tl.sort(tl.where(can_go, key, NONE))
        tl.store(queue + layer * EXPERTS + e, key, mask=inside)
        tl.store(heads + layer, 0)
        tl.store(lowest + layer, NONE)
    else:
        column = tl.arange(0, COUNTS)
        tl.store(counters + column, tl.zeros([COUNTS], tl.int64))
        count = 0
        capacity = tl.load(state + CAPACITY)
        for first in range(0, capacity, BLOCK_FREE):
            s = first + tl.arange(0, BLOCK_FREE)
            within = s < capacity
            is_free = tl.load(owner + s, mask=within, other=0) < 0
            is_free = is_free & (tl.load(locked + s, mask=within, other=1) == 0)
            rank = count + tl.cumsum(is_free.to(tl.int32), 0) - 1
            tl.store(free + rank, s, mask=is_free)
            count += tl.sum(is_free.to(tl.int32), 0)
        tl.store(state + FREE_TAKEN, 0)
        tl.store(state + FREE, count)


@triton.jit
def _learn(
    layer,
    state,
    scores,
    counts,
    before,
    tokens,
    steps,
    chosen,
    earned,
    powers,
    LAYERS: tl.constexpr,
    EXPERTS: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_E: tl.constexpr,
    HALF_LIVES: tl.constexpr,
):
    """The half-life to go by, with scores and credits of the layer's last turn."""
    turn = tl.load(tokens + layer)
    step = tl.load(steps + layer)
    choice = tl.load(chosen + layer)
    h = tl.arange(0, HALF_LIVES)
    # One half of `earned` is read by all programs, the other one written.
    now = earned + (step & 1) * LAYERS * HALF_LIVES
    after = earned + (1 - (step & 1)) * LAYERS * HALF_LIVES
    j = tl.arange(0, BLOCK_L)[:, None]
    total = tl.sum(tl.load(now + j * HALF_LIVES + h[None, :], mask=j < LAYERS, other=0), 0)
    value = total * (_HEAD_START + HALF_LIVES - 1 - h)
    best = tl.max(value, 0)
    if best * _MARGIN > tl.sum(tl.where(h == choice, value, 0), 0) * (_MARGIN + 1):
        choice = tl.min(tl.where(value == best, h, HALF_LIVES), 0)
    credit = tl.load(now + layer * HALF_LIVES + h)
    tl.debug_barrier()
    if turn > 0:
        e = tl.arange(0, BLOCK_E)[None, :]
        inside = e < EXPERTS
        place = (h[:, None] * LAYERS + layer) * EXPERTS + e
        row = layer * EXPERTS + e
        score = tl.load(scores + place, mask=inside, other=0)
        last = tl.load(before + row, mask=inside, other=0)
        routes = tl.load(counts + row, mask=inside, other=0)
        room = (tl.load(state + CAPACITY) + LAYERS // 2) // LAYERS
        rank = tl.where(inside, score + last * ONE, -1)
        # The room-th best of the ranks, bit by bit; with more room than experts, 0.
        least = tl.zeros([HALF_LIVES], tl.int32)
        for bit in range(_RANK_BITS):
            higher = least | (ONE >> bit)
            there = tl.sum((rank >= higher[:, None]).to(tl.int32), 1)
            least = tl.where(there >= room, higher, least)
        had = (routes > 0) & (rank > 0) & (rank >= least[:, None]) & (room > 0)
        hits = tl.sum(had.to(tl.int32), 1).to(tl.int64)
        credit = ((credit * _CREDIT_KEPT) >> _CREDIT_BITS) + (hits << _CREDIT_BITS)
        decay = decay_of(powers, h, turn)
        score = updated(score, routes, turn, decay[:, None])
        tl.store(scores + place, score, mask=inside)
        tl.store(before + row, (routes > 0).to(tl.int32), mask=inside)
    tl.store(after + layer * HALF_LIVES + h, credit)
    tl.store(tokens + layer, -1)
    tl.store(steps + layer, step + 1)
    tl.store(chosen + layer, choice)
    return choice
