"""How fast a model decodes and reads prompts on a PC: measured constants, and arithmetic.

Every result is a range, since two of its causes are not known beforehand: how much of its routing
a model repeats, and how well a processor that nobody measured runs the kernels. Constants name the
result file under benchmarks/results/ that they come from; tests/memory/test_speed.py holds them
and the estimates to those files. Torch-free.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from engine.memory import budget
from engine.memory.model_facts import ModelFacts
from engine.memory.pc import Gpu, Pc

CONTEXT_TOKENS = 1024
"""Estimates are for a conversation of this length."""
VRAM_SHARE = 0.85
"""Of the memory's peak rate that kernels reach."""
GPU_LAYER_S = (40e-6, 58e-6)
"""A layer's kernels beside what they read: 48 us on an H200, from the row of all experts in
gpu-xeon-16-decode.json."""
LINK_SHARE = 0.88
"""Of the best copy's rate at which misses arrive: 0.88, from the other two rows there."""
CPU_LAYER_S = (150e-6, 280e-6)
"""The same on a CPU: 250 to 280 us for the demo model, 150 for SmolLM2 (cpu-xeon-2-decode.json,
cpu-xeon-2-cpu-demo.json, cpu-xeon-2-cpu-smollm2.json)."""
HOST_SHARE = {
    "float32": (0.69, 0.92),
    "bfloat16": (0.71, 0.94),
    "float16": (0.81, 0.82),
    "fp8_block": (0.49, 0.87),
    "nvfp4": (0.37, 0.84),
    "mxfp4": (0.36, 0.84),
    "q8_0": (0.80, 0.80),
    "q4_0": (0.43, 0.43),
    "q4_1": (0.54, 0.54),
    "q4_k": (0.39, 0.39),
    "q6_k": (0.33, 0.33),
}
"""Of the rate of plain reading at which products consume a format: the least and the most of
cpu-xeon-2-host.json and gpu-xeon-16-host.json."""
CPU_CORE_FLOPS = (25e9, 100e9)
"""Operations a second of one core while it reads a prompt: 97 with AMX (cpu-xeon-2-cpu-demo.json,
cpu-xeon-2-cpu-smollm2.json), a quarter of it where there is only AVX2."""
GPU_PROMPT_SHARE = (0.05, 0.25)
"""Of the tensor cores' peak while a prompt is read. Not measured yet."""
LEAST_HITS = ((0.0, 0.0), (0.11, 0.190), (0.25, 0.478), (0.37, 0.580), (0.5, 0.701), (1.0, 1.0))
"""Share of the experts that are cached, and of the routed ones that are found there: the demo
model's own routing (cpu-xeon-2-expert-cache.json)."""
MOST_HITS = ((0.0, 0.0), (0.11, 0.469), (0.25, 0.768), (0.37, 0.887), (1.0, 1.0))
"""The same for routing that repeats itself as conversations do
(cpu-xeon-2-expert-cache-simulated.json)."""


@dataclass(frozen=True)
class Range:
    low: float
    high: float

    @property
    def middle(self) -> float:
        """The geometric mean: as many times above the low end as below the high one."""
        return math.sqrt(self.low * self.high)


def hit_range(facts: ModelFacts, cached: float) -> Range:
    """Share of the routed experts that are in a slot, with this share of all experts cached."""
    moe = facts.spec.moe
    if moe is None or cached >= 1:
        return Range(1.0, 1.0)
    # A layer with fewer slots than routes cannot hit them all, whatever the routing is.
    most = min(1.0, cached * moe.experts / moe.top_k)
    return Range(min(most, _at(LEAST_HITS, cached)), min(most, _at(MOST_HITS, cached)))


def gpu_decode(facts: ModelFacts, pc: Pc, cached: float) -> Range:
    """Tokens a second of one sequence, with `cached` of all experts in VRAM."""
    gpu, link = _channel(pc)
    hits = hit_range(facts, cached)
    context = CONTEXT_TOKENS * budget.kv_bytes_per_token(facts.spec, "bfloat16")
    read = facts.dense_read("bfloat16") + facts.experts_read + context
    seconds = []
    for layer_s, hit in ((GPU_LAYER_S[1], hits.low), (GPU_LAYER_S[0], hits.high)):
        resident = read / (VRAM_SHARE * gpu.vram_rate.per_s) + layer_s * len(facts.spec.layers)
        seconds.append(resident + facts.experts_read * (1 - hit) / (LINK_SHARE * link))
    return Range(1 / seconds[0], 1 / seconds[1])


def cpu_decode(facts: ModelFacts, pc: Pc) -> Range:
    """Tokens a second of one sequence with everything in host memory."""
    context = CONTEXT_TOKENS * budget.kv_bytes_per_token(facts.spec, "float32")
    dense = facts.dense_read("float32", keeps_blocks=True)
    # What is neither quantised nor in blocks is widened to float32 when it is loaded.
    widened = max(0, dense - facts.stored - facts.blocks)
    shares = HOST_SHARE.get(facts.format, HOST_SHARE["q4_k"])
    seconds = []
    for end, layer_s in ((0, CPU_LAYER_S[1]), (1, CPU_LAYER_S[0])):
        stored = (facts.stored + facts.blocks + facts.experts_read) / shares[end]
        plain = (widened + context) / HOST_SHARE["float32"][end]
        seconds.append((stored + plain) / pc.host.per_s + layer_s * len(facts.spec.layers))
    return Range(1 / seconds[0], 1 / seconds[1])


def gpu_prompt(facts: ModelFacts, pc: Pc, cached: float, chunk_tokens: int) -> Range:
    """Tokens a second of a prompt that is read in chunks of this size."""
    return _rate(_gpu_chunk(facts, pc, cached, chunk_tokens), chunk_tokens)


def cpu_prompt(facts: ModelFacts, pc: Pc, chunk_tokens: int) -> Range:
    """The same on a CPU."""
    return _rate(_cpu_chunk(facts, pc, chunk_tokens), chunk_tokens)


def gpu_first_token(
    facts: ModelFacts, pc: Pc, cached: float, tokens: int, chunk_tokens: int
) -> Range:
    """Seconds until a prompt of so many tokens is read."""
    return _whole(lambda chunk: _gpu_chunk(facts, pc, cached, chunk), tokens, chunk_tokens)


def cpu_first_token(facts: ModelFacts, pc: Pc, tokens: int, chunk_tokens: int) -> Range:
    """The same on a CPU."""
    return _whole(lambda chunk: _cpu_chunk(facts, pc, chunk), tokens, chunk_tokens)


def _gpu_chunk(facts: ModelFacts, pc: Pc, cached: float, tokens: int) -> Range:
    """Seconds. A chunk brings the experts that it routes to and that have no slot over the link:
    ahead of their layers at best (experts/stream.py), or after each has routed."""
    gpu, link = _channel(pc)
    missing = facts.store * _touched(facts, tokens) * (1 - cached) / (LINK_SHARE * link)
    slow, fast = (
        2 * facts.active_weights * tokens / (share * gpu.flops) + layer_s * len(facts.spec.layers)
        for share, layer_s in zip(GPU_PROMPT_SHARE, reversed(GPU_LAYER_S), strict=True)
    )
    return Range(max(fast, missing), slow + missing)


def _cpu_chunk(facts: ModelFacts, pc: Pc, tokens: int) -> Range:
    """Seconds. A chunk can be no faster than its weights are read."""
    dense = facts.dense_read("float32", keeps_blocks=True)
    reading = (dense + facts.store * _touched(facts, tokens)) / pc.host.per_s
    seconds = [
        max(reading, 2 * facts.active_weights * tokens / (pc.cores * core))
        for core in CPU_CORE_FLOPS
    ]
    return Range(seconds[1], seconds[0])


def _rate(seconds: Range, tokens: int) -> Range:
    return Range(tokens / seconds.high, tokens / seconds.low)


def _whole(chunk_s: Callable[[int], Range], tokens: int, chunk_tokens: int) -> Range:
    """Seconds of all chunks of a prompt."""
    count, rest = divmod(tokens, chunk_tokens)
    chunks = [chunk_s(chunk_tokens)] * count + ([chunk_s(rest)] if rest else [])
    return Range(sum(chunk.low for chunk in chunks), sum(chunk.high for chunk in chunks))


def _touched(facts: ModelFacts, tokens: int) -> float:
    """Share of a layer's experts that so many tokens route to, were routing even."""
    moe = facts.spec.moe
    return 0.0 if moe is None else 1 - (1 - moe.top_k / moe.experts) ** tokens


def _at(table: Sequence[tuple[float, float]], share: float) -> float:
    """Between the two rows around it, in a straight line."""
    for (left, low), (right, high) in pairwise(table):
        if share <= right:
            return low + (high - low) * (share - left) / (right - left)
    return table[-1][1]


def _channel(pc: Pc) -> tuple[Gpu, float]:
    if pc.gpu is None or pc.link is None:
        raise ValueError("this PC has no GPU to compute on")
    return pc.gpu, pc.link.per_s
