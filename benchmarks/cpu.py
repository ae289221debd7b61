"""Inference on the CPU: the native kernels and torch's operations, or llama.cpp, in turns.

python benchmarks/cpu.py --model demo --json benchmarks/results/<machine>-cpu-demo.json
python benchmarks/cpu.py --model FILE.gguf --llama-cpp PYTHON --json ...

Each round is a process of its own for each of them, with the same threads, the same prompt of
random tokens and greedy decoding. PYTHON is an interpreter that has the package llama_cpp. Medians
of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec

from engine.errors import HeadraceError
from engine.formats.checkpoint import open_checkpoint
from engine.memory.device import resolve_device
from engine.messages import RequestFailed, Sampled, Sampling, Submit
from engine.options import EngineOptions
from engine.runtime import bench_result
from engine.runtime.bench_result import Result, Row
from engine.runtime.engine import Engine
from engine.runtime.loading import model_path
from engine.runtime.openmp import wait_without_spinning
from engine.runtime.threads import apply_threads

OURS, TORCH, LLAMA_CPP = "native kernels", "torch operations", "llama.cpp"
LLAMA_CPP_ROUND = """
import json, sys, time
import numpy
import llama_cpp
from llama_cpp import Llama
task = json.load(sys.stdin)
if task["plain"]:
    interface = llama_cpp.llama_cpp
    defaults = interface.llama_model_default_params
    def plain():
        parameters = defaults()
        parameters.use_extra_bufts = False
        return parameters
    interface.llama_model_default_params = plain
prompt, tokens, threads = task["prompt"], task["tokens"], task["threads"]
model = Llama(task["model"], n_ctx=len(prompt) + tokens, n_batch=len(prompt), n_ubatch=len(prompt),
              n_threads=threads, n_threads_batch=threads, verbose=False)
context = model._ctx.ctx
def step(ids):
    array = (llama_cpp.llama_token * len(ids))(*ids)
    if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(array, len(ids))):
        raise SystemExit("llama_decode failed")
    logits = llama_cpp.llama_get_logits_ith(context, -1)
    return int(numpy.ctypeslib.as_array(logits, (model.n_vocab(),)).argmax())
def run(count):
    model._ctx.kv_cache_clear()
    begin = time.perf_counter()
    out = [step(prompt)]
    first = time.perf_counter()
    while len(out) < count:
        out.append(step(out[-1:]))
    return out, first - begin, (count - 1) / (time.perf_counter() - first)
run(4)
out, first, rate = run(tokens)
print(json.dumps({"tokens": out, "first": first, "rate": rate}))
"""


def our_round(task: dict[str, Any]) -> dict[str, Any]:
    """One request of the task, after a short one that is not measured."""
    wait_without_spinning()
    engine = Engine.load(
        EngineOptions(
            model=task["model"], device="cpu", threads=task["threads"], max_sequences=1
        )
    )  # fmt: skip
    request(engine, task["prompt"], 4)
    return request(engine, task["prompt"], task["tokens"])


def request(engine: Engine, prompt: list[int], tokens: int) -> dict[str, Any]:
    begin = time.perf_counter()
    engine.submit(
        Submit(request=0, tokens=prompt, max_tokens=tokens, sampling=Sampling(temperature=0))
    )
    produced: list[int] = []
    first = 0.0
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, RequestFailed):
                raise HeadraceError(event.error.message, hint=event.error.hint)
            if isinstance(event, Sampled):
                produced.append(event.token)
                first = first or time.perf_counter()
    rate = (len(produced) - 1) / (time.perf_counter() - first)
    return {"tokens": produced, "first": first - begin, "rate": rate}


def measure(who: str, task: dict[str, Any], llama_cpp: str) -> dict[str, Any]:
    """One round in a process of its own. Raises CalledProcessError."""
    environment = os.environ | {"HEADRACE_DEBUG_NATIVE": "0" if who == TORCH else "1"}
    command = [sys.executable, str(Path(__file__).resolve()), "--round"]
    if who == LLAMA_CPP:
        command = [llama_cpp, "-c", LLAMA_CPP_ROUND]
    done = subprocess.run(
        command, input=json.dumps(task), env=environment, stdout=subprocess.PIPE, check=True,
        text=True,
    )  # fmt: skip
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def rows(measured: dict[str, list[dict[str, Any]]], prompt_tokens: int) -> list[Row]:
    """Ours with its speed over the other's, and theirs."""

    def median(who: str, what: str) -> float:
        return statistics.median(each[what] for each in measured[who])

    found = []
    for what, name, unit in (
        ("rate", "decode", "tok/s"),
        ("first", f"first token after {prompt_tokens}", "s"),
    ):
        for who in measured:
            value = median(who, what)
            if who == OURS:
                found.append(Row(name=f"{name}, {who}", value=value, unit=unit))
                continue
            ours = found[-1]
            ratio = ours.value / value if what == "rate" else value / ours.value
            found[-1] = msgspec.structs.replace(ours, versus=f"speed of {who}", ratio=ratio)
            found.append(Row(name=f"{name}, {who}", value=value, unit=unit))
    return found


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description="Native kernels beside torch or llama.cpp.")
    made.add_argument("--model", default="demo", help="folder, GGUF file or demo")
    made.add_argument("--llama-cpp", default="", help="an interpreter that has llama_cpp")
    made.add_argument(
        "--llama-cpp-plain",
        action="store_true",
        help="let it leave weights as stored: its AMX kernels end some machines' threads (SIGILL)",
    )
    made.add_argument("--tokens", type=int, default=64, help="tokens to decode in a round")
    made.add_argument("--prompt-tokens", type=int, default=512)
    made.add_argument("--rounds", type=int, default=5)
    made.add_argument("--threads", type=int, default=0, help="0: one per physical core")
    made.add_argument("--json", type=Path, help="write the record to this file")
    made.add_argument("--round", action="store_true", help=argparse.SUPPRESS)
    return made


def main() -> int:
    options = parser().parse_args()
    if options.round:
        print(json.dumps(our_round(json.load(sys.stdin))))
        return 0
    checkpoint = open_checkpoint(model_path(options.model))
    threads = apply_threads(options.threads)
    draw = random.Random(1)
    task: dict[str, Any] = {
        "model": options.model,
        # Tokens that every vocabulary has.
        "prompt": [draw.randrange(100, 4000) for _ in range(options.prompt_tokens)],
        "tokens": options.tokens,
        "threads": threads,
        "plain": options.llama_cpp_plain,
    }
    if options.llama_cpp and checkpoint.kind != "gguf":
        print(f"llama.cpp reads no {checkpoint.kind}: give a GGUF file", file=sys.stderr)
        return 2
    names = (OURS, LLAMA_CPP if options.llama_cpp else TORCH)
    measured: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for number in range(options.rounds):
        for name in names:
            print(f"round {number + 1} of {options.rounds}: {name}", file=sys.stderr)
            measured[name].append(measure(name, task, options.llama_cpp))
    result = Result(
        bench="cpu",
        commit=bench_result.commit(),
        when=bench_result.now(),
        model=checkpoint.display_name,
        machine=bench_result.machine(resolve_device("cpu")),
        rows=rows(measured, options.prompt_tokens),
        notes=[
            f"{options.tokens} tokens after {options.prompt_tokens}, {options.rounds} rounds.",
            *(["llama.cpp with its weights as stored."] if options.llama_cpp_plain else []),
        ],
    )
    print(bench_result.table(result))
    if options.json is not None:
        bench_result.write(result, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
