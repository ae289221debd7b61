"""How much of the routing a cache of experts catches, beside what a fixed placement would.

python benchmarks/expert_cache.py --model demo --json benchmarks/results/<machine>-expert-cache.json

Conversations are decoded once and their routing is written down; then the residency table replays
it at several capacities. Only decode is counted, in the second half of the conversations: the first
half is what the fixed placement of hot experts learns from, and what warms the cache. Nothing here
depends on how fast the machine is.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from engine.chat.model_files import locate
from engine.chat.text_model import TextModel, load_text_model
from engine.errors import HeadraceError, UnsupportedModel
from engine.experts.residency import Residency
from engine.kernels.residency import ABSENT
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

SIMULATED = (24, 128, 8)
"""Layers, experts, and experts a token."""
Call = tuple[int, list[int]]
"""A layer and the distinct experts that one step routed to."""


@dataclass
class Step:
    decode: bool
    calls: list[Call] = field(default_factory=list)


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


def cache_hits(
    trace: Sequence[list[Step]], layers: int, experts: int, slots: int
) -> tuple[int, int]:
    """(hits, routed) of the decode steps in the second half of the conversations."""
    table = Residency(layers, experts, slots)
    hits = routed = 0
    for number, steps in enumerate(trace):
        for step in steps:
            counted = step.decode and number >= len(trace) // 2
            table.begin_step()
            for layer, ids in step.calls:
                found = route(table, layer, ids)
                if counted:
                    routed += len(ids)
                    hits += found
    return hits, routed


def route(table: Residency, layer: int, ids: list[int]) -> int:
    """Hits. As the runtime does: what finds no slot waits for the next group."""
    waiting = torch.tensor(ids)
    hits = int((table.tables.slot_of[layer, waiting] != ABSENT).sum())
    while waiting.numel():
        waiting = waiting[table.route(layer, waiting).slots == ABSENT]
    return hits


def lru_hits(trace: Sequence[list[Step]], slots: int) -> tuple[int, int]:
    """As `cache_hits`, by plain least-recently-used: what is wanted now stays, the oldest goes."""
    kept: OrderedDict[tuple[int, int], None] = OrderedDict()
    hits = routed = 0
    for number, steps in enumerate(trace):
        for step in steps:
            counted = step.decode and number >= len(trace) // 2
            for layer, ids in step.calls:
                pairs = [(layer, expert) for expert in ids]
                found = [pair for pair in pairs if pair in kept]
                if counted:
                    routed += len(pairs)
                    hits += len(found)
                for pair in found:
                    kept.move_to_end(pair)
                for pair in pairs:
                    if pair not in kept:
                        if len(kept) == slots:
                            kept.popitem(last=False)
                        kept[pair] = None
    return hits, routed


def hottest(trace: Sequence[list[Step]], slots: int) -> set[tuple[int, int]]:
    """The (layer, expert) pairs that decode of the first half used most."""
    counts: Counter[tuple[int, int]] = Counter()
    for steps in trace[: len(trace) // 2]:
        for step in steps:
            if step.decode:
                counts.update((layer, expert) for layer, ids in step.calls for expert in ids)
    return {pair for pair, _ in counts.most_common(slots)}


def placed_hits(trace: Sequence[list[Step]], placed: set[tuple[int, int]]) -> tuple[int, int]:
    """(hits, routed) of a placement that never changes, over the same steps as `cache_hits`."""
    pairs = [
        (layer, expert)
        for steps in trace[len(trace) // 2 :]
        for step in steps
        if step.decode
        for layer, ids in step.calls
        for expert in ids
    ]
    return sum(pair in placed for pair in pairs), len(pairs)


def rows(trace: Sequence[list[Step]], layers: int, experts: int, rates: list[float]) -> list[Row]:
    """Per capacity: the cache, and both placements it is compared with."""
    out = []
    for rate in rates:
        slots = slots_for_rate(rate, layers * experts)
        # Whole layers first, as engines do that place tensors once and know nothing of routing.
        by_layer = {divmod(index, experts) for index in range(slots)}
        shares = []
        for hits, routed in (
            cache_hits(trace, layers, experts, slots),
            lru_hits(trace, slots),
            placed_hits(trace, hottest(trace, slots)),
            placed_hits(trace, by_layer),
        ):
            shares.append(100 * hits / routed if routed else 0.0)
        cache, lru, hot, whole = shares
        hot_name, whole_name = f"fixed hot experts {rate:.0%}", f"fixed whole layers {rate:.0%}"
        out += [
            Row(name=f"hits cache {rate:.0%}", value=cache, unit="%", versus=hot_name,
                ratio=cache / hot if hot else None),
            Row(name=f"hits lru {rate:.0%}", value=lru, unit="%"),
            Row(name=f"hits {hot_name}", value=hot, unit="%"),
            Row(name=f"hits {whole_name}", value=whole, unit="%"),
        ]  # fmt: skip
    return out


def simulated(sequences: int, layers: int, experts: int, top_k: int) -> list[list[Step]]:
    """Routing of a batch by a fixed liking for some experts and a drifting one of each sequence.

    Sixty steps as six conversations, so that three warm the cache. Not any model's routing: it
    shows how a rule behaves when a step's experts come near the number of slots.
    """
    chance = torch.Generator().manual_seed(0)
    liking = torch.randn(layers, experts, generator=chance)
    mood = torch.randn(sequences, layers, experts, generator=chance)
    trace: list[list[Step]] = [[] for _ in range(6)]
    for steps in trace:
        for _ in range(10):
            mood = 0.6 * mood + 0.8 * torch.randn(mood.shape, generator=chance)
            ids = (liking + mood).topk(top_k, dim=-1).indices
            calls = [
                (layer, sorted(set(ids[:, layer].flatten().tolist()))) for layer in range(layers)
            ]
            steps.append(Step(decode=True, calls=calls))
    return trace


def prompts_of(text: TextModel, context: int) -> list[list[int]]:
    return [
        text.chat_prompt([{"role": "user", "content": question}], context_tokens=context).tokens
        for question in QUESTIONS
    ]


def measure(arguments: argparse.Namespace) -> Result:
    """Raises what Engine.load raises."""
    if arguments.simulate:
        layers, experts, top_k = SIMULATED
        trace = simulated(arguments.simulate, *SIMULATED)
        name = f"simulated routing, {arguments.simulate} sequences, {top_k} experts each"
    else:
        text = load_text_model(locate(arguments.model))
        engine = Engine.load(EngineOptions(model=arguments.model, device="cpu", max_sequences=1))
        trace = record(engine, prompts_of(text, engine.ready.context_tokens), arguments.tokens)
        name = text.name
        experts = engine.parts.experts.residency().experts if engine.parts.experts else 0
        layers = _number_layers(trace)
    half = len(trace) // 2
    decoded = sum(step.decode for steps in trace[half:] for step in steps)
    note = (
        f"{decoded} decode steps of {len(trace) - half} conversations, after {half} others; "
        f"{layers} layers of {experts} experts."
    )
    return Result(
        bench="expert-cache",
        commit=bench_result.commit(),
        when=bench_result.now(),
        model=name,
        machine=bench_result.machine(resolve_device("cpu")),
        rows=rows(trace, layers, experts, arguments.rates),
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
    parser.add_argument(
        "--simulate", type=int, default=0, metavar="N", help="no model: routing of N sequences"
    )
    parser.add_argument("--json", type=Path, help="write the record to this file")
    arguments = parser.parse_args(argv)
    try:
        result = measure(arguments)
    except HeadraceError as error:
        print(f"{error.message} {error.hint}".rstrip(), file=sys.stderr)
        return 1
    print(bench_result.table(result))
    if arguments.json is not None:
        bench_result.write(result, arguments.json)
        print(f"Written to {arguments.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
