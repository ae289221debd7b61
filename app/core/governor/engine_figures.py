"""The engine's statistics as the governor reads them."""

from __future__ import annotations

import math

from app.core.governor.evidence import Engine
from engine.messages import Stats

LEAST_SHARE = 0.02
"""Of all experts, that keep a slot when a game runs: with none at all every one would be fetched
for every token. An engine whose own least is more says so in its answer."""


def engine_of(stats: Stats, age_s: float, server: str) -> Engine | None:
    """What this engine holds; None while it holds no VRAM, or while that cannot change.

    `server` tells servers apart, as its pid does.
    """
    if stats.state != "ready" or stats.device != "cuda":
        return None  # `sim` only plays VRAM
    rest = (
        stats.vram_dense_bytes
        + stats.vram_kv_bytes
        + stats.vram_snapshot_bytes
        + stats.vram_workspace_bytes
    )
    slots = max(1, stats.expert_slots)
    least = min(slots, math.ceil(LEAST_SHARE * stats.expert_total))
    return Engine(
        identity=f"{server}/{stats.runtime_pid}/{stats.runtime_restarts}",
        pid=stats.runtime_pid,
        held_bytes=rest + stats.vram_expert_bytes,
        floor_bytes=rest + stats.vram_expert_bytes * least // slots,
        age_s=age_s,
    )
