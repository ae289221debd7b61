"""`headrace bench decode`: tokens a second of one stream, beside transformers."""

from __future__ import annotations

import random
import statistics
import sys
import time

import msgspec

from engine.errors import HeadraceError, UnsupportedModel
from engine.formats.checkpoint import open_checkpoint
from engine.memory.device import Device
from engine.messages import RequestFailed, Sampled, Sampling, Submit
from engine.options import EngineOptions
from engine.runtime import bench_result
from engine.runtime.bench_result import Result, Row
from engine.runtime.bench_twin import Twin, transformers_version
from engine.runtime.engine import Engine
from engine.runtime.loading import compute_dtype, model_path

CHAT = Sampling(temperature=1.0, top_k=20, top_p=0.95)
GREEDY = Sampling(temperature=0.0)


def measure_decode(
    options: EngineOptions,
    *,
    tokens: int,
    prompt_tokens: int,
    rounds: int,
    alone: bool,
    sampled: bool = False,
) -> Result:
    """Decode speed of one stream, `alone` or beside transformers on the same weights.

    `tokens` of at least 2 are decoded after `prompt_tokens`, `rounds` times. They are the likeliest
    ones after one prompt or, if `sampled`, drawn as CHAT says after a prompt of each round: alone.
    Raises what Engine.load raises, and HeadraceError if the model cannot hold the run.
    """
    _say(f"loading {options.model}")
    engine = Engine.load(options)
    device = engine.parts.device
    notes: list[str] = []
    twin = None if alone or sampled else _twin(options, device, notes)
    draw = random.Random(1)
    vocabulary = engine.ready.vocab_size

    def drawn() -> list[int]:
        return [draw.randrange(vocabulary) for _ in range(prompt_tokens)]

    prompt = drawn()
    # One short unmeasured round each: first calls build caches and touch memory.
    decode(engine, prompt, min(8, tokens))
    if twin is not None:
        twin.decode(prompt, min(8, tokens))
    ours, theirs, agree = [], [], 0
    before = engine.stats()
    for number in range(1, rounds + 1):
        _say(f"round {number} of {rounds}")
        sampling = GREEDY
        if sampled:
            prompt, sampling = drawn(), msgspec.structs.replace(CHAT, seed=number)
        made, speed = decode(engine, prompt, tokens, sampling)
        ours.append(speed)
        if twin is not None:
            twin_tokens, speed = twin.decode(prompt, tokens)
            theirs.append(speed)
            agree = _agreement(made, twin_tokens)
    if theirs:
        notes.append(f"The first {agree} of {tokens} greedy tokens are equal in both.")
    after = engine.stats()
    hits = after.expert_hits - before.expert_hits
    misses = after.expert_misses - before.expert_misses
    if hits + misses:
        notes.append(f"{hits / (hits + misses):.1%} of the experts routed to were in a slot.")
    return Result(
        bench="decode",
        commit=bench_result.commit(),
        when=bench_result.now(),
        model=open_checkpoint(model_path(options.model)).display_name,
        machine=bench_result.machine(device, options),
        rows=_rows(engine, options.moe_cache_rate, ours, theirs),
        notes=notes,
    )


def decode(
    engine: Engine, prompt: list[int], tokens: int, sampling: Sampling = GREEDY
) -> tuple[list[int], float]:
    """`tokens` after the prompt, and tokens a second from the first to the last one."""
    engine.submit(Submit(request=0, tokens=prompt, max_tokens=tokens, sampling=sampling))
    produced: list[int] = []
    begin = 0.0
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, RequestFailed):
                raise HeadraceError(event.error.message, hint=event.error.hint)
            if isinstance(event, Sampled):
                produced.append(event.token)
                begin = begin or time.perf_counter()
    if len(produced) != tokens:
        raise HeadraceError(
            f"{len(produced)} of {tokens} tokens were decoded.",
            hint="Ask for fewer than the context leaves after the prompt.",
        )
    return produced, (tokens - 1) / (time.perf_counter() - begin)


def _twin(options: EngineOptions, device: Device, notes: list[str]) -> Twin | None:
    if not transformers_version():
        notes.append("transformers is not installed here, so there is nothing to compare with.")
        return None
    checkpoint = open_checkpoint(model_path(options.model))
    _say("building the same model in transformers")
    try:
        return Twin(checkpoint, compute_dtype(options.dtype, device), device.torch)
    except UnsupportedModel as error:
        notes.append(f"Nothing to compare with: {error.message}")
        return None


def _say(what: str) -> None:
    """On stderr: the table is alone on stdout."""
    print(f"headrace bench: {what}", file=sys.stderr)


def _agreement(ours: list[int], theirs: list[int]) -> int:
    """How many leading tokens are equal."""
    equal = 0
    for mine, other in zip(ours, theirs, strict=True):
        if mine != other:
            break
        equal += 1
    return equal


def _rows(engine: Engine, rate: float, ours: list[float], theirs: list[float]) -> list[Row]:
    ready = engine.ready
    name = f"decode {ready.device}"
    if engine.parts.device.has_slots:
        name += f" {rate:.0%}"
    speed = statistics.median(ours)
    if not theirs:
        return [Row(name=f"{name} {ready.dtype}", value=speed, unit="tok/s")]
    versus = f"transformers {transformers_version()} {ready.dtype}"
    other = statistics.median(theirs)
    return [
        Row(
            name=f"{name} {ready.dtype}",
            value=speed,
            unit="tok/s",
            versus=versus,
            ratio=speed / other,
        ),
        Row(name=f"decode {versus}", value=other, unit="tok/s"),
    ]
