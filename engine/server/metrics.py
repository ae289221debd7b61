"""`/metrics`: the live figures as Prometheus reads them, in its text format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    StateSetMetricFamily,
)
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import engine
from engine.messages import Stats
from engine.server.runtime_link import State
from engine.server.service import Service

PREFIX = "headrace_"
COUNTERS = {
    "runtime_restarts": "Restarts of the runtime.",
    "requests_finished": "Requests ended without an error.",
    "requests_failed": "Requests refused by the runtime, or ended by an error.",
    "steps": "Steps computed.",
    "decode_tokens": "Tokens sampled.",
    "prefill_tokens": "Prompt tokens computed.",
    "expert_hits": "Routed experts that were in a slot.",
    "expert_misses": "Routed experts that were in no slot.",
    "expert_fills": "Experts copied into a slot.",
    "link_bytes": "Bytes copied from host memory to the device.",
}
"""Fields of Stats by what they count; `_total` is added to their names."""
GAUGES = {
    "server_uptime_s": ("server_uptime_seconds", "Time since the server was started."),
    "runtime_restarted_at": (
        "runtime_restart_timestamp_seconds",
        "When the latest restart of the runtime began, since 1970; 0: never.",
    ),
    "requests_running": ("requests_running", "Answers that are being written."),
    "requests_waiting": ("requests_waiting", "Requests that wait to be admitted."),
    "decode_tokens_per_s": ("decode_tokens_per_second", "Over the last two seconds."),
    "prefill_tokens_per_s": ("prefill_tokens_per_second", "Over the last two seconds."),
    "vram_total_bytes": ("vram_capacity_bytes", "Memory of the device."),
    "vram_dense_bytes": ("vram_dense_bytes", "Weights that always lie on the device."),
    "vram_expert_bytes": ("vram_expert_bytes", "Slots of experts."),
    "vram_kv_bytes": ("vram_kv_bytes", "Keys and values."),
    "vram_snapshot_bytes": ("vram_snapshot_bytes", "Recurrent states that are kept."),
    "vram_workspace_bytes": ("vram_workspace_bytes", "What a step computes with."),
    "vram_graph_bytes": ("vram_graph_bytes", "What captured steps hold."),
    "vram_overhead_bytes": (
        "vram_overhead_bytes",
        "The driver's context and kernels, of the runtime.",
    ),
    "vram_other_bytes": ("vram_other_bytes", "Memory of the device that others have."),
    "ram_total_bytes": ("ram_capacity_bytes", "Memory of the machine."),
    "ram_available_bytes": ("ram_available_bytes", "Memory of the machine that is free."),
    "ram_expert_store_bytes": ("ram_expert_store_bytes", "The store of all experts."),
    "ram_expert_pinned_bytes": (
        "ram_expert_pinned_bytes",
        "Of the store, what the GPU reads by itself.",
    ),
    "ram_expert_locked_bytes": (
        "ram_expert_locked_bytes",
        "Of the rest of the store, what is never swapped out.",
    ),
    "ram_dense_bytes": ("ram_dense_bytes", "Other weights in host memory."),
    "ram_kv_bytes": ("ram_kv_bytes", "Keys and values in host memory."),
    "ram_snapshot_bytes": ("ram_snapshot_bytes", "Recurrent states in host memory."),
    "ram_runtime_bytes": ("ram_runtime_bytes", "Resident set of the runtime."),
    "kv_tokens_used": ("kv_tokens_used", "Tokens whose keys and values are held."),
    "kv_tokens_total": ("kv_tokens_capacity", "Tokens whose keys and values have room."),
    "prefill_chunk_tokens": ("prefill_chunk_tokens", "Most tokens of a prompt in one step."),
    "emulated": ("emulated", "1 where the device, its memory or its link are played."),
    "expert_slots": ("expert_slots", "Slots for experts."),
    "expert_slots_used": ("expert_slots_used", "Slots with an expert in it."),
    "expert_total": ("experts", "Experts of the model, all layers together."),
    "expert_hit_rate": (
        "expert_hit_ratio",
        "Share of routed experts that were in a slot, over the last two seconds with traffic.",
    ),
    "link_bytes_per_s": ("link_bytes_per_second", "From host memory to the device, now."),
    "gather_us_per_step": (
        "gather_microseconds_per_step",
        "Time in which absent experts are fetched, by the device's clock, lately.",
    ),
    "gather_bytes_per_s": (
        "gather_bytes_per_second",
        "The link's rate while absent experts are fetched, lately.",
    ),
    "host_bytes_per_s": ("host_bytes_per_second", "Read from host memory by experts, now."),
    "cpu_share": ("cpu_expert_ratio", "Share of routed experts that the CPU computed."),
}
"""Fields of Stats by their name here and what they are."""
LABELS = ("model", "family", "device", "dtype")


def routes(service: Service) -> list[Route]:
    registry = CollectorRegistry()
    registry.register(_Figures(service))
    latencies = service.link.latencies.registry

    async def metrics(_request: Request) -> Response:
        text = generate_latest(registry) + generate_latest(latencies)
        return Response(text, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    return [Route("/metrics", metrics, methods=["GET"])]


class _Figures(Collector):
    def __init__(self, service: Service) -> None:
        self._service = service

    def describe(self) -> list[Metric]:
        """Asked for by the registry, which would else collect figures before there are any."""
        return []

    def collect(self) -> Iterator[Metric]:
        return families(self._service.stats())


def families(stats: Stats) -> Iterator[Metric]:
    """Each figure as a metric of its own; text as labels."""
    labels = {name: str(getattr(stats, name)) for name in LABELS}
    yield InfoMetricFamily(
        f"{PREFIX}engine", "What runs.", value={"version": engine.__version__, **labels}
    )
    yield StateSetMetricFamily(
        f"{PREFIX}state",
        "Which one the server is in.",
        value={state: state == stats.state for state in get_args(State)},
    )
    for field, said in COUNTERS.items():
        yield CounterMetricFamily(PREFIX + field, said, value=getattr(stats, field))
    for field, (name, said) in GAUGES.items():
        yield GaugeMetricFamily(PREFIX + name, said, value=getattr(stats, field))
