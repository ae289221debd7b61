"""The residency tables on a GPU: one launch when a step begins, one for each MoE layer.

A step begins with a queue for each layer, its slots in the order in which they would go. So the
victims are the best of the queues' heads and of one more candidate a layer, the same that a look at
every slot would find (`residency_route.py` says why).

One block a layer: its warps share tables in device memory, with a barrier between what one writes
and others read.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from engine.kernels.expert_scores import HALF_LIVES
from engine.kernels.gpu.ahead import Ahead
from engine.kernels.gpu.residency_begin import begin_kernel
from engine.kernels.gpu.residency_route import route_kernel
from engine.kernels.residency import COUNTS, Route, Tables

BLOCK_FREE = 2048
WARPS = 4
REGISTERS = 255
"""A layer's launch is one block, so it may have all it can use."""
ROOM = 128
"""For routes of several tokens."""
MOST_SLOTS, MOST_LAYERS, MOST_EXPERTS = 1 << 20, 1 << 10, 1 << 12


def residency_begin(state: Tensor, tables: Tables) -> None:
    """As engine.kernels.residency.residency_begin, in one launch."""
    del state
    constants = _constants(*tables.slot_of.shape)
    begin_kernel[(constants["LAYERS"] + 1,)](
        *(tables.slot_of, tables.owner, tables.locked, tables.state, tables.counters),
        *(tables.scores, tables.counts, tables.before, tables.tokens, tables.steps, tables.chosen),
        *(tables.credits, tables.powers, tables.queue, tables.heads, tables.lowest, tables.free),
        **constants,
        BLOCK_FREE=BLOCK_FREE,
        HALF_LIVES=len(HALF_LIVES),
        num_warps=WARPS,
    )


def residency_route(ids: Tensor, layer: int, tables: Tables) -> Route:
    """As engine.kernels.residency.residency_route, in one launch that reads nothing back. Ids that
    are no experts are ABSENT."""
    return _route(ids, layer, ids.shape[0], tables, counted=False)


def residency_route_counts(counts: Tensor, layer: int, tokens: int, tables: Tables) -> Route:
    """As engine.kernels.residency.residency_route_counts, in one launch that reads nothing back."""
    return _route(counts, layer, tokens, tables, counted=True)


def _route(ids: Tensor, layer: int, tokens: int, tables: Tables, *, counted: bool) -> Route:
    layers, experts = tables.slot_of.shape
    if layers > MOST_LAYERS or experts > MOST_EXPERTS or tables.owner.numel() > MOST_SLOTS:
        raise ValueError(
            f"no more than {MOST_LAYERS} layers, {MOST_EXPERTS} experts and {MOST_SLOTS} slots"
        )
    routes = ids.numel()
    slots = torch.empty(ids.shape, dtype=torch.int32, device=ids.device)
    fills = torch.empty((min(routes, experts), 2), dtype=torch.int32, device=ids.device)
    count = torch.empty(1, dtype=torch.int32, device=ids.device)
    route_kernel[(1,)](
        *(ids.contiguous(), slots, fills, count, tables.slot_of, tables.owner, tables.locked),
        *(tables.state, tables.counters, tables.scores, tables.counts, tables.tokens),
        *(tables.chosen, tables.powers, tables.queue, tables.heads, tables.lowest, tables.free),
        *(layer, routes, tokens),
        **_constants(layers, experts),
        **_route_constants(routes, tokens, counted=counted),
        num_warps=WARPS,
        maxnreg=REGISTERS,
    )
    return Route(slots, fills, count)


def _constants(layers: int, experts: int) -> dict[str, int]:
    return {
        "LAYERS": layers,
        "EXPERTS": experts,
        "COUNTS": COUNTS,
        "BLOCK_L": triton.next_power_of_2(layers),
        "BLOCK_E": triton.next_power_of_2(experts),
    }


def _route_constants(routes: int, tokens: int, *, counted: bool) -> dict[str, int | bool]:
    """One token has room of its own. For all other numbers of tokens it is the same, so that a
    prompt of a new length never waits for a compiler."""
    least = 1 if tokens <= 1 else ROOM
    block = 1 if counted else max(least, triton.next_power_of_2(max(1, routes)))
    return {"COUNTED": counted, "BLOCK_R": block}


def _ahead(model: str, layers: int, experts: int, tokens: int, each: int) -> tuple[Ahead, ...]:
    names = "state counters scores counts before tokens steps chosen earned powers"
    learned = {each: "*i64" if each in ("counters", "earned") else "*i32" for each in names.split()}
    owned = dict.fromkeys(("slot_of", "owner", "locked"), "*i32")
    queues = {"queue": "*i64", "heads": "*i32", "lowest": "*i64", "free": "*i32"}
    read = {k: v for k, v in learned.items() if k not in ("before", "steps", "earned")}
    call = {"slots": "*i32", "fills": "*i32", "count": "*i32", **owned, **read, **queues}
    call |= {"layer": "i32", "routes": "i32", "turn": "i32"}
    constants = _constants(layers, experts)
    return (
        Ahead(
            f"residency begin {model}",
            begin_kernel,
            {**owned, **learned, **queues},
            {**constants, "BLOCK_FREE": BLOCK_FREE, "HALF_LIVES": len(HALF_LIVES)},
            warps=WARPS,
        ),
        Ahead(
            f"residency route {model} {tokens} tokens",
            route_kernel,
            {"ids": "*i64", **call},
            {**constants, **_route_constants(tokens * each, tokens, counted=False)},
            warps=WARPS,
            registers=REGISTERS,
        ),
        Ahead(
            f"residency route {model} counts",
            route_kernel,
            {"ids": "*i32", **call},
            {**constants, **_route_constants(experts, 0, counted=True)},
            warps=WARPS,
            registers=REGISTERS,
        ),
    )


AHEAD = (
    *_ahead("qwen3.6-35b-a3b", 40, 256, 1, 8),
    *_ahead("qwen3.6-35b-a3b", 40, 256, 8, 8)[1:2],
    *_ahead("demo", 10, 16, 1, 4),
)
