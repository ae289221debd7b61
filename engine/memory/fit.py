"""Does a model fit this PC, and how fast would it be? An estimate, before anything is loaded.

Memory is divided by the same solver that the runtime asks at its start (solver.py), so the two
cannot disagree on what fits; speed is arithmetic (speed.py). Torch-free. Nothing here refuses
anything: an estimate may be wrong, and the person decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from engine.errors import OutOfMemory
from engine.memory import speed
from engine.memory.budget import Budget, Need, Share
from engine.memory.model_facts import ModelFacts
from engine.memory.pc import Pc
from engine.memory.solver import solve
from engine.memory.speed import Range
from engine.options import EngineOptions

Backend = Literal["cpu", "offload", "fused"]
Verdict = Literal["fits", "when_free", "too_large"]
PROMPT_TOKENS = 1000
"""The prompt whose first token is estimated."""
_MOST = 1 << 60


@dataclass(frozen=True)
class Fit:
    """An estimate. Sizes in bytes, rates in tokens a second."""

    verdict: Verdict
    """`fits` now; `when_free`: once other programs give back what they hold; or `too_large`."""
    backend: Backend
    """What would compute it: `fused` (all experts in VRAM), `offload` (a part), `cpu`."""
    ram: int
    """Host memory that the model would take, context included; 0 where it does not fit."""
    vram: int
    ram_least: int
    """Free host memory with which it runs at all, the margin for other programs included."""
    vram_least: int
    ram_short: int = 0
    """What is missing of what is free, or for `too_large` of all there is."""
    vram_short: int = 0
    budget: Budget | None = None
    """None where it does not fit."""
    cached: float = 1.0
    """Share of the experts in VRAM."""
    hits: Range | None = None
    """Share of the routed experts found there; None on `cpu` and for a dense model."""
    decode: Range | None = None
    """None where it does not fit."""
    prompt: Range | None = None
    first_token_s: Range | None = None
    """Of a prompt of PROMPT_TOKENS."""
    notes: tuple[str, ...] = ()
    """What the estimate assumes, and what of the PC is not measured."""


def fit(facts: ModelFacts, pc: Pc, options: EngineOptions) -> Fit:
    """How `options.device` runs the model; `auto` and `cuda` try the GPU first, then the CPU.

    The context is the options', or else what memory allows. Raises InvalidRequest for options that
    contradict each other, as `solve` does.
    """
    found: list[Fit] = []
    if pc.gpu is not None and options.device in ("auto", "cuda"):
        found.append(_on_gpu(facts, pc, options))
    if options.device != "cuda" or not found:
        found.append(_on_cpu(facts, pc, options))
    for verdict in ("fits", "when_free"):
        for one in found:
            if one.verdict == verdict:
                return one
    return min(found, key=lambda one: one.ram_short + one.vram_short)


def _on_gpu(facts: ModelFacts, pc: Pc, options: EngineOptions) -> Fit:
    assert pc.gpu is not None  # the caller looked
    need = facts.need(options, "bfloat16", on_cpu=False)
    vram_free, vram_total = pc.gpu.vram_free, pc.gpu.vram_total

    def divide(host: int, device: int) -> Budget:
        return solve(need, has_slots=bool(need.pools), host_free=host, device_free=device)

    budget = _solved(divide, pc.ram_free, vram_free)
    verdict: Verdict = "fits"
    if budget is None:
        budget = _solved(divide, pc.ram_total, vram_total)
        verdict = "when_free"
    ram = _least(lambda host: divide(host, _MOST))
    vram = _least(lambda device: divide(_MOST, device))
    if budget is None:
        short = (max(0, ram - pc.ram_total), max(0, vram - vram_total))
        return _too_large("offload" if need.pools else "fused", ram, vram, short, pc)
    cached = _cached(need, budget)
    chunk = budget.chunk_tokens
    return Fit(
        verdict=verdict,
        backend="offload" if cached < 1 else "fused",
        ram=budget.host.taken,
        vram=_share(budget).taken,
        ram_least=ram,
        vram_least=vram,
        ram_short=max(0, ram - pc.ram_free),
        vram_short=max(0, vram - vram_free),
        budget=budget,
        cached=cached,
        hits=speed.hit_range(facts, cached) if need.pools else None,
        decode=speed.gpu_decode(facts, pc, cached),
        prompt=speed.gpu_prompt(facts, pc, cached, chunk),
        first_token_s=speed.gpu_first_token(facts, pc, cached, PROMPT_TOKENS, chunk),
        notes=(
            *pc.unmeasured,
            *pc.notes,
            *budget.notes,
            "How fast a GPU reads prompts is assumed, as no such run is recorded.",
        ),
    )


def _on_cpu(facts: ModelFacts, pc: Pc, options: EngineOptions) -> Fit:
    need = facts.need(options, "float32", on_cpu=True)

    def divide(host: int) -> Budget:
        return solve(need, has_slots=False, host_free=host)

    budget = _solved(divide, pc.ram_free)
    verdict: Verdict = "fits"
    if budget is None:
        budget = _solved(divide, pc.ram_total)
        verdict = "when_free"
    ram = _least(divide)
    if budget is None:
        return _too_large("cpu", ram, 0, (max(0, ram - pc.ram_total), 0), pc)
    chunk = budget.chunk_tokens
    return Fit(
        verdict=verdict,
        backend="cpu",
        ram=budget.host.taken,
        vram=0,
        ram_least=ram,
        vram_least=0,
        ram_short=max(0, ram - pc.ram_free),
        budget=budget,
        decode=speed.cpu_decode(facts, pc),
        prompt=speed.cpu_prompt(facts, pc, chunk),
        first_token_s=speed.cpu_first_token(facts, pc, PROMPT_TOKENS, chunk),
        notes=(*pc.unmeasured[:1], *pc.notes, *budget.notes),
    )


def _too_large(backend: Backend, ram: int, vram: int, short: tuple[int, int], pc: Pc) -> Fit:
    return Fit("too_large", backend, 0, 0, ram, vram, *short, notes=pc.notes)


def _solved(divide: Callable[..., Budget], *free: int) -> Budget | None:
    try:
        return divide(*free)
    except OutOfMemory:
        return None


def _least(divide: Callable[[int], Budget]) -> int:
    """The fewest free bytes with which the solver does not refuse, its margin included."""
    low, high = 0, _MOST
    while low < high:
        middle = (low + high) // 2
        if _solved(divide, middle) is None:
            low = middle + 1
        else:
            high = middle
    return low


def _share(budget: Budget) -> Share:
    return budget.device or budget.host


def _cached(need: Need, budget: Budget) -> float:
    blobs = sum(pool.blobs for pool in need.pools)
    return sum(budget.slots) / blobs if blobs else 1.0
