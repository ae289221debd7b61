"""`headrace bench ttft` and `load`: what a client waits for, with a real server."""

from __future__ import annotations

import random
import statistics
import sys

from engine.formats.checkpoint import open_checkpoint
from engine.memory.device import resolve_device
from engine.options import EngineOptions
from engine.runtime import bench_result
from engine.runtime.bench_result import Result, Row
from engine.runtime.bench_server import Served, serving
from engine.runtime.loading import model_path
from engine.runtime.threads import apply_threads

EXTENSION_TOKENS = 30
"""Of the turn that follows a long conversation."""
ANSWER_TOKENS = 16
_LOAD_PROMPT = "Say hello."


def measure_ttft(
    options: EngineOptions, arguments: list[str], lengths: list[int], talk: int, rounds: int
) -> Result:
    """Seconds from text to first text, of prompts of each length, and of a short turn after a
    conversation of `talk` tokens. `arguments` are those of `headrace serve` that mean `options`.

    Raises HeadraceError for what the server refuses or cannot load.
    """
    draw, rows = random.Random(1), []
    with serving(arguments) as server:
        _say("loading")
        server.stages()
        name = f"ttft {server.request('GET', '/v1/engine/stats')['device']}"
        for length in sorted(lengths):
            _say(f"prompts of {length} tokens")
            seconds = [_prompt(server, length, draw) for _ in range(rounds + 1)]
            rows += _rows(f"{name} {length}", seconds)
        _say(f"turns of {EXTENSION_TOKENS} tokens after {talk}")
        seconds = [_extension(server, talk, draw) for _ in range(rounds + 1)]
        rows += _rows(f"{name} {EXTENSION_TOKENS} after {talk}", seconds)
        rows.append(_worst(server, name))
    return _result("ttft", options, rows, [f"medians of {rounds} after a first one, over HTTP"])


def measure_load(options: EngineOptions, arguments: list[str], rounds: int) -> Result:
    """Seconds from a process's start to its first text, with the stages on the way; no expert is in
    a slot before. Raises HeadraceError as measure_ttft does."""
    taken: dict[str, list[float]] = {}
    for number in range(1, rounds + 1):
        _say(f"start {number} of {rounds}")
        with serving(arguments) as server:
            before = 0.0
            for stage, end in server.stages():
                taken.setdefault(stage, []).append(end - before)
                before = end
            taken.setdefault("ready", []).append(before)
            wait, _ = server.first_text([{"role": "user", "content": _LOAD_PROMPT}], 1)
            taken.setdefault("first text after", []).append(wait)
            taken.setdefault("first text", []).append(before + wait)
    rows = [
        Row(name=f"load {stage}", value=statistics.median(seconds), unit="s")
        for stage, seconds in taken.items()
    ]
    notes = ["each stage's own time; `ready` and `first text` count from the process's start"]
    return _result("load", options, rows, [*notes, f"medians of {rounds}"])


def _prompt(server: Served, length: int, draw: random.Random) -> float:
    text = server.text(length, draw)
    return server.first_text([{"role": "user", "content": text}], 1)[0]


def _extension(server: Served, talk: int, draw: random.Random) -> float:
    """A short turn after a conversation that was just answered."""
    messages = [{"role": "user", "content": server.text(talk, draw)}]
    _, answer = server.first_text(messages, ANSWER_TOKENS)
    messages += [
        {"role": "assistant", "content": answer},
        {"role": "user", "content": server.text(EXTENSION_TOKENS, draw)},
    ]
    return server.first_text(messages, 1)[0]


def _rows(name: str, seconds: list[float]) -> list[Row]:
    first, *others = seconds
    return [
        Row(name=name, value=statistics.median(others), unit="s"),
        Row(name=f"{name} first seen", value=first, unit="s"),
    ]


def _worst(server: Served, name: str) -> Row:
    worst = server.request("GET", "/v1/engine/stats")["ttft_worst_s"]
    return Row(name=f"{name} worst, by the engine's own count", value=worst, unit="s")


def _result(bench: str, options: EngineOptions, rows: list[Row], notes: list[str]) -> Result:
    apply_threads(options.threads)
    return Result(
        bench=bench,
        commit=bench_result.commit(),
        when=bench_result.now(),
        model=open_checkpoint(model_path(options.model)).display_name,
        # After the server has gone, whose memory and link they share.
        machine=bench_result.machine(resolve_device(options.device), options),
        rows=rows,
        notes=notes,
    )


def _say(what: str) -> None:
    print(f"headrace bench: {what}", file=sys.stderr)
