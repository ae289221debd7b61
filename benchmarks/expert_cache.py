"""How much of the routing the cache of experts catches, beside other rules and the best possible.

python benchmarks/expert_cache.py --model demo --json benchmarks/results/<machine>-expert-cache.json

Conversations are decoded once and their routing is written down (`--write-routes` keeps it,
`--routes` reads it again); then the residency table replays it at several capacities, as it is and
held to each of its half-lives. Only decode is counted, in the second half of the conversations: the
first half is what the fixed placement of hot experts learns from, and what warms the cache. Nothing
here depends on how fast the machine is.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec

from benchmarks.cache_replays import (
    FixedHalfLife,
    best_hits,
    hottest,
    lru_hits,
    placed_hits,
    residency_hits,
)
from benchmarks.routing import Routes, Step, read, simulated, write
from engine.chat.model_files import locate
from engine.chat.text_model import TextModel, load_text_model
from engine.errors import HeadraceError, UnsupportedModel
from engine.experts.residency import Residency
from engine.kernels.expert_scores import HALF_LIVES
from engine.memory.budget import slots_for_rate
from engine.memory.device import resolve_device
from engine.messages import RequestFailed, Sampling, Submit
from engine.options import EngineOptions
from engine.runtime import bench_result
from engine.runtime.bench_result import Result, Row
from engine.runtime.engine import Engine

QUESTIONS = (
    "What is the capital of France?",
    "Write a short story about a cat who finds a key.",
    "Write a Python function that adds two numbers.",
    "Give me three tips for staying healthy.",
    "Explain what a river is in one sentence.",
    "Why do people sleep?",
    "Describe a sunset in two sentences.",
    "What is the largest planet in the solar system?",
    "Write a two-line poem about the sea.",
    "Rewrite this sentence in a friendlier tone: Send me the report now.",
    "Name three fruits.",
    "How does a bicycle stay upright?",
)


def record(engine: Engine, prompts: Sequence[list[int]], tokens: int) -> list[list[Step]]:
    """The routing of each conversation, decoded alone at temperature 0.7 with a fixed seed."""
    runtime = engine.parts.experts
    if runtime is None:
        raise UnsupportedModel("This model has no routed experts: there is nothing to cache.")
    conversations = []
    for number, prompt in enumerate(prompts):
        steps: list[Step] = []
        runtime.on_routing = lambda layer, ids, steps=steps: steps[-1].calls.append((layer, ids))
        sampling = Sampling(temperature=0.7, seed=number)
        engine.submit(Submit(request=number, tokens=prompt, max_tokens=tokens, sampling=sampling))
        computed = 0
        while engine.has_work:
            steps.append(Step(decode=computed >= len(prompt)))
            for event in engine.step():
                if isinstance(event, RequestFailed):
                    raise HeadraceError(event.error.message, hint=event.error.hint)
            computed += engine.parts.limits.chunk_tokens if computed < len(prompt) else 1
        conversations.append([step for step in steps if step.calls])
    runtime.on_routing = None
    return conversations


def rows(routes: Routes, rates: list[float]) -> list[Row]:
    """Per capacity: the cache, what it chooses from, others' rules and fixed placements."""
    layers, experts, trace = routes.layers, routes.experts, routes.conversations
    out = []
    for rate in rates:
        slots = slots_for_rate(rate, layers * experts)
        # Whole layers first, as engines do that place tensors once and know nothing of routing.
        by_layer = {divmod(index, experts) for index in range(slots)}
        found = {
            "cache": residency_hits(trace, Residency(layers, experts, slots)),
            **{
                f"half-life {half_life}": residency_hits(
                    trace, FixedHalfLife(layers, experts, slots, index)
                )
                for index, half_life in enumerate(HALF_LIVES)
            },
            "lru": lru_hits(trace, slots),
            "fixed hot experts": placed_hits(trace, hottest(trace, slots)),
            "fixed whole layers": placed_hits(trace, by_layer),
            "best possible": best_hits(trace, slots),
        }
        shares = {name: 100 * hits / max(1, routed) for name, (hits, routed) in found.items()}
        out += [
            Row(name=f"hits {name} {rate:.0%}", value=it, unit="%") for name, it in shares.items()
        ]
        best = shares["best possible"]
        out[-len(shares)] = msgspec.structs.replace(
            out[-len(shares)],
            versus=f"best possible {rate:.0%}",
            ratio=shares["cache"] / best if best else None,
        )
    return out


def prompts_of(text: TextModel, context: int) -> list[list[int]]:
    return [
        text.chat_prompt([{"role": "user", "content": question}], context_tokens=context).tokens
        for question in QUESTIONS
    ]


def recorded(model: str, tokens: int) -> Routes:
    """Raises what Engine.load raises."""
    text = load_text_model(locate(model))
    engine = Engine.load(EngineOptions(model=model, device="cpu", max_sequences=1))
    trace = record(engine, prompts_of(text, engine.ready.context_tokens), tokens)
    experts = engine.parts.experts.residency().experts if engine.parts.experts else 0
    return Routes(text.name, _number_layers(trace), experts, trace)


def measure(routes: Routes, rates: list[float]) -> Result:
    trace = routes.conversations
    half = len(trace) // 2
    decoded = sum(step.decode for steps in trace[half:] for step in steps)
    note = (
        f"{decoded} decode steps of {len(trace) - half} conversations, after {half} others; "
        f"{routes.layers} layers of {routes.experts} experts."
    )
    return Result(
        bench="expert-cache",
        commit=bench_result.commit(),
        when=bench_result.now(),
        model=routes.model,
        machine=bench_result.machine(resolve_device("cpu")),
        rows=rows(routes, rates),
        notes=[note],
    )


def _number_layers(trace: Sequence[list[Step]]) -> int:
    """Number the layers that route from 0; returns how many there are."""
    used = sorted({layer for steps in trace for step in steps for layer, _ in step.calls})
    place = {layer: index for index, layer in enumerate(used)}
    for steps in trace:
        for step in steps:
            step.calls = [(place[layer], ids) for layer, ids in step.calls]
    return len(used)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="demo", help="folder, GGUF file or demo")
    parser.add_argument("--tokens", type=int, default=96, help="longest answer")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.11, 0.25, 0.37, 0.5, 0.75])
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--simulate", type=int, default=0, metavar="N", help="no model: routing of N sequences"
    )
    source.add_argument("--routes", type=Path, metavar="FILE", help="no model: a file of routes")
    parser.add_argument(
        "--write-routes", type=Path, metavar="FILE", help="write what was routed (routing.py)"
    )
    parser.add_argument("--json", type=Path, help="write the record to this file")
    arguments = parser.parse_args(argv)
    try:
        if arguments.routes:
            routes = read(arguments.routes)
        elif arguments.simulate:
            routes = simulated(arguments.simulate)
        else:
            routes = recorded(arguments.model, arguments.tokens)
    except HeadraceError as error:
        print(f"{error.message} {error.hint}".rstrip(), file=sys.stderr)
        return 1
    if arguments.write_routes is not None:
        write(routes, arguments.write_routes)
    result = measure(routes, arguments.rates)
    print(bench_result.table(result))
    if arguments.json is not None:
        bench_result.write(result, arguments.json)
        print(f"Written to {arguments.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
