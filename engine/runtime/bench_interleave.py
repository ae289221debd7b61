"""`headrace bench interleave`: how long an answer stands still while a long prompt is read."""

from __future__ import annotations

import random
import statistics
import sys
import time
from dataclasses import dataclass, field

import msgspec

from engine.errors import HeadraceError
from engine.formats.checkpoint import open_checkpoint
from engine.memory.budget import PAGE_TOKENS, SMALLEST_CHUNK
from engine.messages import AnyEvent, RequestFailed, Sampled, Sampling, StepEnded, Submit
from engine.options import EngineOptions
from engine.runtime import bench_result
from engine.runtime.bench_result import Result, Row
from engine.runtime.engine import Engine
from engine.runtime.loading import model_path

ANSWER, PROMPT = 0, 1
"""Numbers of the requests."""
ANSWER_PROMPT_TOKENS = 64
BEFORE_TOKENS = 32
"""Of the answer, before the prompt comes."""


@dataclass
class Round:
    alone: list[float] = field(default_factory=list)
    """Seconds between the answer's tokens before the prompt comes."""
    beside: list[float] = field(default_factory=list)
    """And while it is read."""
    chunks: list[float] = field(default_factory=list)
    """Seconds of the steps that read it."""


def measure_interleave(options: EngineOptions, tokens: int, rounds: int) -> Result:
    """A prompt of so many tokens comes while an answer is written; medians of `rounds` after a
    first one. Raises what Engine.load raises."""
    # The answer gets a token in each step, of which there are at most so many.
    chunk_tokens = min(SMALLEST_CHUNK, options.prefill_chunk_tokens or SMALLEST_CHUNK)
    answer = ANSWER_PROMPT_TOKENS + BEFORE_TOKENS + -(-tokens // chunk_tokens) + 2
    options = msgspec.structs.replace(
        options,
        max_sequences=2,
        context_tokens=max(tokens + 1, answer),
        kv_tokens=tokens + 1 + answer + 2 * PAGE_TOKENS,
    )
    print(f"headrace bench: loading {options.model}", file=sys.stderr)
    engine = Engine.load(options)
    draw = random.Random(1)
    _round(engine, draw, tokens, answer)  # kernels may be compiled for its sizes
    taken = [_round(engine, draw, tokens, answer) for _ in range(rounds)]
    gap = statistics.median(max(each.beside) for each in taken)
    chunk = statistics.median(max(each.chunks) for each in taken)
    alone = statistics.median(one for each in taken for one in each.alone)
    name = f"interleave {engine.ready.device} {tokens}"
    return Result(
        bench="interleave",
        commit=bench_result.commit(),
        when=bench_result.now(),
        model=open_checkpoint(model_path(options.model)).display_name,
        machine=bench_result.machine(engine.parts.device, options),
        rows=[
            Row(
                name=f"{name} longest gap",
                value=gap * 1e3,
                unit="ms",
                versus="the longest chunk's step",
                ratio=gap / chunk,
            ),
            Row(name=f"{name} longest chunk's step", value=chunk * 1e3, unit="ms"),
            Row(name=f"{name} gap before it", value=alone * 1e3, unit="ms"),
        ],
        notes=[_note(taken[-1], engine.parts.limits.chunk_tokens)],
    )


def _note(one: Round, chunk_tokens: int) -> str:
    return (
        f"{len(one.chunks)} steps of up to {chunk_tokens} tokens of the prompt; "
        f"{len(one.beside)} tokens of the answer meanwhile"
    )


def _round(engine: Engine, draw: random.Random, tokens: int, answer: int) -> Round:
    vocabulary, taken = engine.ready.vocab_size, Round()

    def submit(request: int, length: int, count: int) -> None:
        prompt = [draw.randrange(vocabulary) for _ in range(length)]
        sampling = Sampling(temperature=1.0, seed=request)
        engine.submit(Submit(request=request, tokens=prompt, max_tokens=count, sampling=sampling))

    submit(ANSWER, ANSWER_PROMPT_TOKENS, answer - ANSWER_PROMPT_TOKENS)
    last, answered, asked = 0.0, 0, False
    while True:
        events = engine.step()
        now = time.perf_counter()
        _check(events)
        if asked and any(isinstance(e, Sampled) and e.request == PROMPT for e in events):
            taken.chunks.append(_seconds(events))
            taken.beside.append(now - last)
            break
        if not any(isinstance(e, Sampled) and e.request == ANSWER for e in events):
            continue
        if answered:
            (taken.beside if asked else taken.alone).append(now - last)
        if asked:
            taken.chunks.append(_seconds(events))
        last, answered = now, answered + 1
        if answered == BEFORE_TOKENS:
            submit(PROMPT, tokens, 1)
            asked = True
    engine.cancel(ANSWER)
    while engine.has_work:
        engine.step()
    return taken


def _seconds(events: list[AnyEvent]) -> float:
    return sum(event.seconds for event in events if isinstance(event, StepEnded))


def _check(events: list[AnyEvent]) -> None:
    for event in events:
        if isinstance(event, RequestFailed):
            raise HeadraceError(event.error.message, hint=event.error.hint)
