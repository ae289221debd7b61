"""Counters and rates of one engine, and the record that tells them."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import psutil
import torch

from engine.experts.runtime import ExpertCounters, ExpertRuntime
from engine.messages import Stats
from engine.runtime.accounting import owners
from engine.runtime.parts import Parts
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
    _gathers: Share = field(default_factory=Share)
    """Nanoseconds by steps."""
    _gathered: Share = field(default_factory=Share)
    """Bytes by nanoseconds."""
    _experts: ExpertCounters = field(default_factory=ExpertCounters)
    _process: psutil.Process = field(default_factory=psutil.Process)

    def step(
        self, begin: float, end: float, prefill: int, sampled: int, experts: ExpertRuntime | None
    ) -> None:
        """One step from `begin` to `end` that computed `prefill` tokens and gave `sampled`."""
        self.steps += 1
        self.prefill_tokens += prefill
        self.decode_tokens += sampled
        if prefill:
            self._prefill.add(begin, end, prefill)
        if sampled:
            self._decode.add(begin, end, sampled)
        if experts is not None:
            self._route(begin, end, experts.counters())

    def _route(self, begin: float, end: float, now: ExpertCounters) -> None:
        before, self._experts = self._experts, now
        self._link.add(begin, end, now.link_bytes - before.link_bytes)
        self._host.add(begin, end, now.host_bytes - before.host_bytes)
        took = now.gather_ns - before.gather_ns
        self._gathers.add(end, took, 1)
        self._gathered.add(end, now.gather_bytes - before.gather_bytes, took)
        hits = now.hits - before.hits
        self._hits.add(end, hits, hits + now.misses - before.misses)

    def first_token(self, seconds: float) -> None:
        self.ttft_s = seconds
        self.ttft_worst_s = max(self.ttft_worst_s, seconds)

    def stats(self, now: float, parts: Parts, scheduler: Scheduler) -> Stats:
        memory = psutil.virtual_memory()
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
            ram_runtime_bytes=self._process.memory_info().rss,
            kv_tokens_used=sum(sequence.computed for sequence in scheduler.running),
            kv_tokens_total=parts.limits.kv_tokens,
            prefill_chunk_tokens=parts.limits.chunk_tokens,
            emulated=parts.emulated,
            expert_hit_rate=self._hits.value(),
            link_bytes_per_s=self._link.per_second(now),
            gather_us_per_step=self._gathers.value() / 1e3,
            gather_bytes_per_s=self._gathered.value() * 1e9,
            host_bytes_per_s=self._host.per_second(now),
        )
        return msgspec.structs.replace(stats, **_memory(parts), **_experts(parts.experts))


def _memory(parts: Parts) -> dict[str, int]:
    """Bytes by owner. On `cpu` the owners are the host's."""
    owned = owners(parts)
    if not parts.device.has_slots:
        return {f"ram_{owner}_bytes": owned[owner] for owner in ("dense", "kv", "snapshot")}
    taken = sum(owned.values())
    total, other = parts.memory.total or taken, 0
    if parts.device.kind == "cuda":
        free, real = torch.cuda.mem_get_info(parts.device.torch)
        other = max(0, real - free - taken)
    figures = {"total": total, "other": other, **owned}
    return {f"vram_{owner}_bytes": size for owner, size in figures.items()}


def _experts(experts: ExpertRuntime | None) -> dict[str, int | float]:
    if experts is None:
        return {}
    counters = experts.counters()
    computed = counters.hits + counters.misses + counters.host_experts
    return {
        "ram_expert_store_bytes": experts.store_bytes,
        "ram_expert_pinned_bytes": experts.pinned_bytes,
        "ram_expert_locked_bytes": experts.locked_bytes,
        "expert_slots": sum(experts.slots),
        "expert_slots_used": experts.slots_used,
        "expert_total": experts.experts_total,
        "expert_hits": counters.hits,
        "expert_misses": counters.misses,
        "expert_fills": counters.fills,
        "link_bytes": counters.link_bytes,
        "cpu_share": counters.host_experts / computed if computed else 0.0,
    }
