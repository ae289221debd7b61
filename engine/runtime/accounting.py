"""Whose the device's memory is."""

from __future__ import annotations

import torch

from engine.runtime.parts import Parts


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
