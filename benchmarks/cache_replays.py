"""What caches of experts would have hit of a recorded routing: ours, simpler ones, and the best.

Each replay gives (hits, routed) of the decode steps in the second half of the conversations; an
expert counts once a layer and step. The first half warms the cache, and teaches fixed placements.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

import torch

from benchmarks.routing import Step, distinct
from engine.experts.residency import Residency
from engine.kernels.residency import ABSENT, count_routes

Trace = Sequence[list[Step]]
Pair = tuple[int, int]
"""(layer, expert)"""


def _counted(trace: Trace) -> Iterator[tuple[Step, bool]]:
    """All steps, and whether they count."""
    for number, steps in enumerate(trace):
        for step in steps:
            yield step, step.decode and number >= len(trace) // 2


def _pairs(step: Step) -> Iterator[list[Pair]]:
    for layer, ids in step.calls:
        yield [(layer, expert) for expert in distinct(ids)]


class FixedHalfLife(Residency):
    """Goes by one of the half-lives, whatever the traffic."""

    def __init__(self, layers: int, experts: int, slots: int, chosen: int) -> None:
        super().__init__(layers, experts, slots)
        self.tables.chosen.fill_(chosen)

    def begin_step(self) -> None:
        # Without credits no other one is better.
        self.tables.credits.zero_()
        super().begin_step()


def residency_hits(trace: Trace, table: Residency) -> tuple[int, int]:
    hits = routed = 0
    for step, counts in _counted(trace):
        table.begin_step()
        for layer, ids in step.calls:
            found = _route(table, layer, torch.tensor(ids))
            if counts:
                routed += len(distinct(ids))
                hits += found
    return hits, routed


def _route(table: Residency, layer: int, ids: torch.Tensor) -> int:
    """Hits. As the runtime does: what finds no slot waits for the next group."""
    waiting, tokens = count_routes(ids, table.experts), len(ids)
    hits = int(((waiting > 0) & (table.tables.slot_of[layer] != ABSENT)).sum())
    while bool(waiting.any()):
        slots = table.route_counts(layer, waiting, tokens).slots
        waiting, tokens = torch.where(slots == ABSENT, waiting, 0), 0
    return hits


def lru_hits(trace: Trace, slots: int) -> tuple[int, int]:
    """By plain least-recently-used: what is wanted now stays, the oldest goes."""
    kept: OrderedDict[Pair, None] = OrderedDict()
    hits = routed = 0
    for step, counts in _counted(trace):
        for pairs in _pairs(step):
            found = [pair for pair in pairs if pair in kept]
            if counts:
                routed += len(pairs)
                hits += len(found)
            for pair in found:
                kept.move_to_end(pair)
            for pair in pairs:
                if pair not in kept:
                    if len(kept) == slots:
                        kept.popitem(last=False)
                    kept[pair] = None
    return hits, routed


def best_hits(trace: Trace, slots: int) -> tuple[int, int]:
    """By a cache that knows the future: what is needed again last goes (Belady, "A study of
    replacement algorithms for a virtual-storage computer", 1966)."""
    calls = [(pairs, counts) for step, counts in _counted(trace) for pairs in _pairs(step)]
    later = _next_uses([pairs for pairs, _ in calls])
    kept: dict[Pair, int] = {}
    last: list[tuple[int, Pair]] = []
    """(minus the next use, pair); entries that `kept` does not confirm are stale."""
    hits = routed = 0
    for (pairs, counts), uses in zip(calls, later, strict=True):
        found = sum(pair in kept for pair in pairs)
        if counts:
            routed += len(pairs)
            hits += found
        # More experts than slots are computed in groups, so some go at once.
        room = max(0, slots - len(pairs))
        wanted = set(pairs)
        others = len(kept) - found
        while others > room:
            use, pair = heappop(last)
            if kept.get(pair) == -use and pair not in wanted:
                del kept[pair]
                others -= 1
        for pair in pairs:
            kept.pop(pair, None)
        for use, pair in sorted(zip(uses, pairs, strict=True))[:slots]:
            kept[pair] = use
            heappush(last, (-use, pair))
    return hits, routed


def _next_uses(calls: list[list[Pair]]) -> list[list[int]]:
    """Of each pair of each call: the number of the call that has it next."""
    seen: dict[Pair, int] = {}
    later = []
    for number in range(len(calls) - 1, -1, -1):
        later.append([seen.get(pair, len(calls)) for pair in calls[number]])
        seen.update(dict.fromkeys(calls[number], number))
    return later[::-1]


def hottest(trace: Trace, slots: int) -> set[Pair]:
    """The pairs that decode of the first half used most."""
    uses: Counter[Pair] = Counter()
    for steps in trace[: len(trace) // 2]:
        for step in steps:
            if step.decode:
                uses.update(pair for pairs in _pairs(step) for pair in pairs)
    return {pair for pair, _ in uses.most_common(slots)}


def placed_hits(trace: Trace, placed: set[Pair]) -> tuple[int, int]:
    """By a placement that never changes."""
    pairs = [
        pair
        for step, counts in _counted(trace)
        if counts
        for pairs in _pairs(step)
        for pair in pairs
    ]
    return sum(pair in placed for pair in pairs), len(pairs)
