"""`headrace bench prefill`: how fast prompts are read, beside the time that the link needs.

Every chunk of a prompt needs nearly all experts: those that have no slot cross the link, so no
chunk is faster than they are.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from dataclasses import dataclass, field

import msgspec

from engine.errors import HeadraceError, OutOfMemory
from engine.experts.runtime import ExpertCounters
from engine.formats.checkpoint import open_checkpoint
from engine.messages import RequestFailed, Sampled, Sampling, Submit
from engine.options import EngineOptions
from engine.runtime import bench_result
from engine.runtime.bench_result import Machine, Result, Row
from engine.runtime.engine import Engine
from engine.runtime.loading import model_path

TALK_TOKENS = 64
"""Of the conversation whose hits are counted before and after a prompt: read, and decoded."""


@dataclass
class Length:
    """Prompts of one length."""

    tokens: int
    first_seconds: float = 0.0
    """The first one; kernels may be compiled for its sizes."""
    seconds: list[float] = field(default_factory=list)
    """Of the others."""
    link_bytes: int = 0
    """Of the last one."""

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class Runs:
    """One engine's prompts."""

    lengths: list[Length]
    chunk_tokens: int
    absent_bytes: int
    """Of all experts, those without a slot."""
    hits: tuple[float, float] | None
    """Of a conversation's decoded tokens, before and after the longest prompt."""


def measure_prefill(
    options: EngineOptions, lengths: list[int], rounds: int, *, resident: bool
) -> Result:
    """Prompts of each length, `rounds` times after a first one. `resident`: beside the same with
    all experts on the device. Raises what Engine.load raises."""
    context = max(lengths) + 2 * TALK_TOKENS
    options = msgspec.structs.replace(options, max_sequences=1, context_tokens=context)
    whole = _resident(options, lengths, rounds) if resident else None
    engine = _load(options)
    machine = bench_result.machine(engine.parts.device, options)
    runs = _prompts(engine, lengths, rounds)
    name = f"prefill {engine.ready.device}"
    if engine.parts.device.has_slots:
        slots, total = engine.stats().expert_slots, engine.stats().expert_total
        name += f" {slots / total:.0%}" if total else ""
    engine.close()
    return Result(
        bench="prefill",
        commit=bench_result.commit(),
        when=bench_result.now(),
        model=open_checkpoint(model_path(options.model)).display_name,
        machine=machine,
        rows=_rows(name, runs, whole, _link(machine)),
        notes=_notes(runs),
    )


def _load(options: EngineOptions) -> Engine:
    print(f"headrace bench: loading {options.model}", file=sys.stderr)
    return Engine.load(options)


def _resident(options: EngineOptions, lengths: list[int], rounds: int) -> Runs:
    """Of the device as it is, with all experts in slots. Raises OutOfMemory if they do not fit."""
    engine = _load(
        msgspec.structs.replace(
            options, moe_cache_rate=1.0, emulate_vram_bytes=0, emulate_link_bytes_per_s=0
        )
    )
    try:
        stats = engine.stats()
        if stats.expert_slots < stats.expert_total:
            raise OutOfMemory(
                f"{stats.expert_slots} of {stats.expert_total} experts have room on the device.",
                hint="Leave --resident out.",
            )
        return _prompts(engine, lengths, rounds)
    finally:
        engine.close()


def _prompts(engine: Engine, lengths: list[int], rounds: int) -> Runs:
    draw = random.Random(1)
    vocabulary, experts = engine.ready.vocab_size, engine.parts.experts

    def drawn(tokens: int) -> list[int]:
        return [draw.randrange(vocabulary) for _ in range(tokens)]

    talk = drawn(TALK_TOKENS)
    _talk(engine, talk)
    taken = []
    for tokens in sorted(lengths):
        print(f"headrace bench: prompts of {tokens} tokens", file=sys.stderr)
        length = Length(tokens, _read(engine, drawn(tokens)))
        for _ in range(rounds):
            before = engine.stats().link_bytes
            length.seconds.append(_read(engine, drawn(tokens)))
            length.link_bytes = engine.stats().link_bytes - before
        taken.append(length)
    hits = None
    if experts is not None and engine.parts.device.has_slots:
        _talk(engine, talk)
        before_prompt = _talk(engine, talk)
        _read(engine, drawn(max(lengths)))
        hits = before_prompt, _talk(engine, talk)
    absent = 0
    if experts is not None and engine.parts.device.has_slots:
        absent = max(0, experts.store_bytes - sum(p.slots * p.stride for p, _ in experts.pools))
    return Runs(taken, engine.parts.limits.chunk_tokens, absent, hits)


def _read(engine: Engine, prompt: list[int]) -> float:
    """Seconds from a prompt to its first token."""
    begin = time.perf_counter()
    _answer(engine, prompt, 1)
    return time.perf_counter() - begin


def _talk(engine: Engine, prompt: list[int]) -> float:
    """Share of hits in a conversation's decoded tokens, which are the same each time."""
    before = _answer(engine, prompt, TALK_TOKENS + 1)
    after = _counters(engine)
    hits, misses = after.hits - before.hits, after.misses - before.misses
    return hits / max(1, hits + misses)


def _answer(engine: Engine, prompt: list[int], tokens: int) -> ExpertCounters:
    """Computes it. Returns the counters as of the first token."""
    submit = Submit(
        request=0, tokens=prompt, max_tokens=tokens, sampling=Sampling(temperature=1.0, seed=1)
    )
    engine.submit(submit)
    first: ExpertCounters | None = None
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, RequestFailed):
                raise HeadraceError(event.error.message, hint=event.error.hint)
            if isinstance(event, Sampled) and first is None:
                first = _counters(engine)
    return first or ExpertCounters()


def _counters(engine: Engine) -> ExpertCounters:
    experts = engine.parts.experts
    return ExpertCounters() if experts is None else experts.counters()


def _link(machine: Machine) -> float:
    """Bytes a second of the link that was measured, or is played; 0: there is none."""
    rates = [rate for rate in (machine.link, machine.emulated_link) if rate]
    return min(rates, default=0.0) * 1e9


def _rows(name: str, runs: Runs, whole: Runs | None, link: float) -> list[Row]:
    rows = []
    for place, length in enumerate(runs.lengths):
        chunks = -(-length.tokens // runs.chunk_tokens)
        floor = chunks * runs.absent_bytes / link if link else 0.0
        versus = f"{length.tokens}: absent experts over the link"
        if whole is not None:
            computed = whole.lengths[place].median
            rows.append(Row(name=f"prefill resident {length.tokens}", value=computed, unit="s"))
            if computed > floor:
                floor, versus = computed, f"{length.tokens}: all experts resident"
        title = f"{name} {length.tokens}"
        seconds = length.median
        ratio = seconds / floor if floor else None
        rows += [
            Row(name=title, value=seconds, unit="s", versus=versus if floor else "", ratio=ratio),
            Row(name=f"{title} speed", value=length.tokens / seconds, unit="tok/s"),
            Row(name=f"{title} first seen", value=length.first_seconds, unit="s"),
        ]
        if floor:
            rows.append(Row(name=f"{title} floor", value=floor, unit="s"))
    if runs.hits is not None:
        longest = runs.lengths[-1].tokens
        for when, share in zip(("before", "after"), runs.hits, strict=True):
            title = f"hits of {TALK_TOKENS} decoded tokens {when} {longest}"
            rows.append(Row(name=title, value=100 * share, unit="%"))
    return rows


def _notes(runs: Runs) -> list[str]:
    absent = f"{runs.absent_bytes / 1e9:.2f} GB"
    return [
        f"{runs.chunk_tokens} tokens of a prompt in a step; experts without a slot are {absent}",
        *(
            f"{each.tokens} tokens brought {each.link_bytes / 1e9:.2f} GB over the link"
            for each in runs.lengths
        ),
    ]
