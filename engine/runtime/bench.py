"""`headrace bench`: measurements that print one table and, when asked, write a JSON record."""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from pathlib import Path

from engine.errors import HeadraceError, InvalidRequest, UnsupportedModel
from engine.formats.checkpoint import open_checkpoint
from engine.memory.device import Device
from engine.messages import RequestFailed, Sampled, Sampling, Submit
from engine.options import EngineOptions
from engine.runtime import bench_result
from engine.runtime.bench_host import HOST, run_host
from engine.runtime.bench_result import Result, Row
from engine.runtime.bench_twin import Twin, transformers_version
from engine.runtime.engine import Engine
from engine.runtime.loading import compute_dtype, model_path

DECODE = "Tokens a second of one stream, beside transformers on the same weights."


def main(argv: list[str]) -> int:
    """`decode ...` or `host ...`. Returns the exit status."""
    verbs = {"decode": run_decode, "host": run_host}
    if argv and argv[0] in ("-h", "--help"):
        print(f"usage: headrace bench decode [-h] ...\n\n{DECODE}\n")
        print(f"usage: headrace bench host [-h] ...\n\n{HOST}")
        return 0
    if not argv or argv[0] not in verbs:
        wanted, known = argv[0] if argv else "nothing", ", ".join(verbs)
        print(f"headrace bench: {wanted} is not measured; there are: {known}", file=sys.stderr)
        return 2
    return verbs[argv[0]](argv[1:])


def run_decode(argv: list[str]) -> int:
    """Decode speed of one stream beside transformers. Returns the exit status."""
    arguments = parser().parse_args(argv)
    try:
        result = measure_decode(arguments)
    except HeadraceError as error:
        print(f"headrace bench: {error.message} {error.hint}".rstrip(), file=sys.stderr)
        return 1
    print(bench_result.table(result))
    if arguments.json is not None:
        bench_result.write(result, arguments.json)
        print(f"Written to {arguments.json}")
    return 0


def parser() -> argparse.ArgumentParser:
    own = argparse.ArgumentParser(
        prog="headrace bench decode",
        description=DECODE,
    )
    own.add_argument("--model", default="demo", help="folder, GGUF file or demo")
    own.add_argument("--tokens", type=int, default=64, help="tokens to decode in a round")
    own.add_argument("--prompt-tokens", type=int, default=64, help="tokens to read before")
    own.add_argument("--rounds", type=int, default=5, help="the median of them is shown")
    own.add_argument(
        "--device",
        default="auto",
        choices=["auto", "cpu", "sim", "cuda"],
        help="what computes; auto: cuda where there is one, else cpu",
    )
    own.add_argument(
        "--dtype",
        default="auto",
        choices=["auto", "float32", "bfloat16"],
        help="of activations and plain weights; auto: bfloat16 on cuda, float32 elsewhere",
    )
    own.add_argument(
        "--moe-cache-rate",
        type=float,
        default=1.0,
        metavar="RATE",
        help="share of the experts that have a place on the device, 0 < RATE <= 1",
    )
    own.add_argument("--threads", type=int, default=0, help="0: one per physical core")
    own.add_argument("--json", type=Path, help="write the record to this file")
    own.add_argument("--alone", action="store_true", help="leave transformers out")
    return own


def measure_decode(arguments: argparse.Namespace) -> Result:
    """Raises what Engine.load raises, and HeadraceError if the model cannot hold the run."""
    for name, least in (("tokens", 2), ("prompt_tokens", 1), ("rounds", 1)):
        if getattr(arguments, name) < least:
            option = name.replace("_", "-")
            raise InvalidRequest(f"--{option} is {getattr(arguments, name)}; at least {least}.")
    options = EngineOptions(
        model=arguments.model,
        device=arguments.device,
        dtype=arguments.dtype,
        moe_cache_rate=arguments.moe_cache_rate,
        threads=arguments.threads,
        max_sequences=1,
    )
    _say(f"loading {arguments.model}")
    engine = Engine.load(options)
    device = engine.parts.device
    notes: list[str] = []
    twin = None if arguments.alone else _twin(options, device, notes)
    draw = random.Random(1)
    vocabulary = engine.ready.vocab_size
    prompt = [draw.randrange(vocabulary) for _ in range(arguments.prompt_tokens)]
    # One short unmeasured round each: first calls build caches and touch memory.
    decode(engine, prompt, min(8, arguments.tokens))
    if twin is not None:
        twin.decode(prompt, min(8, arguments.tokens))
    ours, theirs, agree = [], [], 0
    for number in range(1, arguments.rounds + 1):
        _say(f"round {number} of {arguments.rounds}")
        tokens, speed = decode(engine, prompt, arguments.tokens)
        ours.append(speed)
        if twin is not None:
            twin_tokens, speed = twin.decode(prompt, arguments.tokens)
            theirs.append(speed)
            agree = _agreement(tokens, twin_tokens)
    if theirs:
        notes.append(f"The first {agree} of {len(tokens)} greedy tokens are equal in both.")
    return Result(
        bench="decode",
        commit=bench_result.commit(),
        when=bench_result.now(),
        model=open_checkpoint(model_path(arguments.model)).display_name,
        machine=bench_result.machine(device),
        rows=_rows(engine, arguments.moe_cache_rate, ours, theirs),
        notes=notes,
    )


def decode(engine: Engine, prompt: list[int], tokens: int) -> tuple[list[int], float]:
    """Greedy `tokens` after the prompt, and tokens a second from the first to the last one."""
    engine.submit(
        Submit(request=0, tokens=prompt, max_tokens=tokens, sampling=Sampling(temperature=0))
    )
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
