"""The engine's memory by owner, as parts of what the machine has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from app.core import units
from app.core.governor.evidence import Program
from engine.messages import Stats


@dataclass(frozen=True)
class Owner:
    """One owner's share of a memory. `key` is stable, `label` is for the person."""

    key: str
    label: str
    bytes: int


def device_memory(stats: Stats) -> list[Owner]:
    """VRAM: real on cuda, emulated on sim, all zero on cpu."""
    return [
        Owner("weights", "Weights", stats.vram_dense_bytes),
        Owner("experts", "Expert slots", stats.vram_expert_bytes),
        Owner("kv", "KV cache", stats.vram_kv_bytes),
        Owner("snapshots", "Snapshots", stats.vram_snapshot_bytes),
        Owner(
            "workspace",
            "Workspace",
            stats.vram_workspace_bytes + stats.vram_graph_bytes + stats.vram_overhead_bytes,
        ),
        Owner("other", "Other programs", stats.vram_other_bytes),
    ]


def device_memory_name(stats: Stats) -> str:
    """What to call it: on sim host memory plays VRAM, and a GPU may play a smaller one."""
    if stats.device == "sim":
        return "VRAM, simulated"
    return "VRAM, emulated" if stats.device == "cuda" and stats.emulated else "VRAM"


def host_memory(stats: Stats) -> list[Owner]:
    """RAM: the runtime's own parts, the rest of its process, and everybody else's."""
    named = (
        stats.ram_dense_bytes
        + stats.ram_expert_store_bytes
        + stats.ram_kv_bytes
        + stats.ram_snapshot_bytes
    )
    # A store that is not touched yet is not in the resident set, hence the floor.
    workspace = max(0, stats.ram_runtime_bytes - named)
    used = max(0, stats.ram_total_bytes - stats.ram_available_bytes)
    return [
        Owner("weights", "Weights", stats.ram_dense_bytes),
        Owner("experts", "Expert store", stats.ram_expert_store_bytes),
        Owner("kv", "KV cache", stats.ram_kv_bytes),
        Owner("snapshots", "Snapshots", stats.ram_snapshot_bytes),
        Owner("workspace", "Runtime", workspace),
        Owner("other", "Other programs", max(0, used - named - workspace)),
    ]


def has_device_memory(stats: Stats) -> bool:
    return any(owner.bytes for owner in device_memory(stats)) or stats.vram_total_bytes > 0


def total(owners: list[Owner]) -> int:
    return sum(owner.bytes for owner in owners)


def name_others(programs: Iterable[Program], most: int = 4) -> str:
    """Who holds VRAM beside the engine, the largest first; empty where nobody is known to.

    Processes of one name count together. Where the system keeps back how much one holds, it has
    its name alone.
    """
    held: dict[str, int] = {}
    for program in programs:
        if program.on_gpu or program.vram_bytes:
            name = program.game or program.name
            held[name] = held.get(name, 0) + (program.vram_bytes or 0)
    largest = sorted(held.items(), key=lambda item: (-item[1], item[0].lower()))
    words = [f"{name} {units.size(size)}" if size else name for name, size in largest[:most]]
    if len(largest) > most:
        words.append(f"{len(largest) - most} more")
    return f"Other programs: {', '.join(words)}" if words else ""
