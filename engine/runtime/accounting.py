"""Whose the device's memory is, and how a step gets more of it."""

from __future__ import annotations

import logging
from dataclasses import replace

import torch

from engine.memory.budget import gb
from engine.runtime.parts import Parts

ROOM_SHARE = 0.125
"""Of a step's workspace: what is given up at once where nobody says how much is lacking."""

logger = logging.getLogger(__name__)


def owners(parts: Parts) -> dict[str, int]:
    """Bytes by owner; together they are what this process has of the device's memory. The
    workspace is what torch's allocator holds for steps; where the device is played, or not measured
    yet, as the budget has it."""
    states = parts.states
    real = parts.device.kind == "cuda"
    kv, snapshots = parts.kv.nbytes, 0 if states is None else states.nbytes
    if real:
        # Whole pieces of physical memory.
        kv, snapshots = parts.kv.backed, 0 if states is None else states.backed
    held = {
        "dense": parts.dense_bytes,
        "expert": parts.experts.slot_bytes if parts.experts is not None else 0,
        "kv": kv,
        "snapshot": snapshots,
        "graph": parts.graph_bytes,
        "overhead": parts.memory.overhead,
    }
    workspace = parts.share.workspace
    if real:
        reserved = torch.cuda.memory_reserved(parts.device.torch)
        workspace = max(0, reserved - parts.held_by_torch)
    return {**held, "workspace": workspace}


def close_books(parts: Parts, graph_bytes: int) -> None:
    """Once everything is placed and captured: what is nobody's in particular is overhead, and torch
    may hold no more than the budget gives it."""
    parts.graph_bytes = graph_bytes
    parts.memory.measure_overhead(sum(owners(parts).values()))
    limit_torch(parts)


def limit_torch(parts: Parts) -> None:
    """Torch's allocator gets what the budget does not give to arenas."""
    if parts.memory.resizes:
        share = parts.share
        arenas = share.slots + share.kv + share.states
        more = max(0, parts.graph_bytes - share.buffers)
        parts.memory.cap_torch(share.free - share.margin - arenas + more)


def make_room(parts: Parts, lacking: int) -> int:
    """A step had too little memory: slots of experts give up what was `lacking` (0: unknown), for
    good. Only between steps. Returns the bytes that they gave."""
    if parts.device.kind == "cuda":
        torch.cuda.empty_cache()
    experts, share = parts.experts, parts.budget.device
    if experts is None or share is None or not parts.memory.resizes:
        return 0
    wanted = lacking or int(share.workspace * ROOM_SHARE)
    slots = []
    for pool, _ in experts.pools:
        # Each pool its share, rounded up; a layer is computed with as little as one slot.
        part = -(-wanted * pool.slots // max(1, sum(experts.slots)) // pool.stride)
        slots.append(max(1, pool.slots - part))
    before = experts.slot_bytes
    experts.resize(slots)
    given = before - experts.slot_bytes
    if given:
        logger.warning(
            "a step lacked memory: %d slots of experts give it %s, %d are left",
            *(sum(parts.budget.slots) - sum(slots), gb(given), sum(slots)),
        )
    share = replace(share, slots=share.slots - given, workspace=share.workspace + given)
    parts.budget = replace(parts.budget, slots=tuple(slots), device=share)
    limit_torch(parts)
    return given
