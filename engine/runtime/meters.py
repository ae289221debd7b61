"""Counters and rates of one engine, and the record that tells them."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import psutil

from engine.messages import Stats
from engine.runtime.parts import ExpertCounters, Parts
from engine.runtime.rates import Rate, Share
from engine.scheduler.scheduler import Scheduler


@dataclass
class Meters:
    """Fed once a step, with times of one monotonic clock."""

    steps: int = 0
    decode_tokens: int = 0
    prefill_tokens: int = 0
    finished: int = 0
    failed: int = 0
    ttft_s: float = 0.0
    ttft_worst_s: float = 0.0
    _decode: Rate = field(default_factory=Rate)
    _prefill: Rate = field(default_factory=Rate)
    _link: Rate = field(default_factory=Rate)
    _host: Rate = field(default_factory=Rate)
    _hits: Share = field(default_factory=Share)
    _experts: ExpertCounters = field(default_factory=ExpertCounters)
    _process: psutil.Process = field(default_factory=psutil.Process)

    def step(
        self, begin: float, end: float, prefill: int, sampled: int, experts: ExpertCounters
    ) -> None:
        self.steps += 1
        self.prefill_tokens += prefill
        self.decode_tokens += sampled
        if prefill:
            self._prefill.add(begin, end, prefill)
        if sampled:
            self._decode.add(begin, end, sampled)
        before, self._experts = self._experts, experts
        self._link.add(begin, end, experts.link_bytes - before.link_bytes)
        self._host.add(begin, end, experts.host_bytes - before.host_bytes)
        hits = experts.hits - before.hits
        self._hits.add(end, hits, hits + experts.misses - before.misses)

    def first_token(self, seconds: float) -> None:
        self.ttft_s = seconds
        self.ttft_worst_s = max(self.ttft_worst_s, seconds)

    def stats(self, now: float, parts: Parts, scheduler: Scheduler) -> Stats:
        experts = parts.experts.counters()
        memory = psutil.virtual_memory()
        used = sum(sequence.computed for sequence in scheduler.running)
        routed = experts.hits + experts.misses
        stats = Stats(
            device=parts.ready.device,
            dtype=parts.ready.dtype,
            family=parts.ready.family,
            requests_running=len(scheduler.running),
            requests_waiting=len(scheduler.waiting),
            requests_finished=self.finished,
            requests_failed=self.failed,
            steps=self.steps,
            decode_tokens=self.decode_tokens,
            prefill_tokens=self.prefill_tokens,
            decode_tokens_per_s=self._decode.per_second(now),
            prefill_tokens_per_s=self._prefill.per_second(now),
            ttft_s=self.ttft_s,
            ttft_worst_s=self.ttft_worst_s,
            ram_total_bytes=memory.total,
            ram_available_bytes=memory.available,
            ram_expert_store_bytes=experts.store_bytes,
            ram_runtime_bytes=self._process.memory_info().rss,
            kv_tokens_used=used,
            kv_tokens_total=parts.limits.kv_tokens,
            expert_slots=experts.slots,
            expert_slots_used=experts.slots_used,
            expert_total=experts.total,
            expert_hits=experts.hits,
            expert_misses=experts.misses,
            expert_fills=experts.fills,
            expert_hit_rate=self._hits.value(),
            link_bytes=experts.link_bytes,
            link_bytes_per_s=self._link.per_second(now),
            host_bytes_per_s=self._host.per_second(now),
            # Where there are slots every routed expert is computed from one; else all on the CPU.
            cpu_share=1.0 if experts.total and not experts.slots and not routed else 0.0,
        )
        return msgspec.structs.replace(stats, **_memory_by_owner(parts, experts))


def _memory_by_owner(parts: Parts, experts: ExpertCounters) -> dict[str, int]:
    snapshots = parts.states.nbytes if parts.states is not None else 0
    if parts.host_is_device:
        return {
            "ram_dense_bytes": parts.dense_bytes,
            "ram_kv_bytes": parts.kv.nbytes,
            "ram_snapshot_bytes": snapshots,
        }
    return {
        "vram_total_bytes": parts.vram_total_bytes,
        "vram_dense_bytes": parts.dense_bytes,
        "vram_expert_bytes": experts.slot_bytes,
        "vram_kv_bytes": parts.kv.nbytes,
        "vram_snapshot_bytes": snapshots,
        "vram_workspace_bytes": parts.workspace_bytes,
    }
