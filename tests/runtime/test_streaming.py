"""Prompts whose experts are streamed: the same answers at every cache rate."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.messages import Sampling, Submit
from engine.runtime.debug import DebugFaults
from engine.runtime.engine import Engine
from engine.runtime.loading import load
from tests.runtime.driving import Driver, options

STREAMED = DebugFaults(stream="always")
PROMPTS = [90, 3, 40, 1]


def demo(debug: DebugFaults | None = None, **changes: object) -> Driver:
    values = {"prefill_chunk_tokens": 32, "context_tokens": 512, "max_sequences": 3, **changes}
    return Driver(Engine(load(options(Path("demo"), **values)), debug or DebugFaults()))


def answers(run: Driver) -> list[list[int]]:
    """Prompts of one and of several chunks, and tokens of others in the chunks' steps."""
    for number, length in enumerate(PROMPTS):
        tokens = [(7 * number + 13 * place) % 1000 for place in range(length)]
        run.engine.submit(
            Submit(request=number, tokens=tokens, max_tokens=12, sampling=Sampling(temperature=0))
        )
        run.step(2)
    run.run()
    return [run.tokens(number) for number in range(len(PROMPTS))]


@pytest.fixture(scope="module")
def in_place() -> list[list[int]]:
    return answers(demo())


@pytest.mark.parametrize("rate", [0.05, 0.12, 0.37, 0.75, 1.0])
def test_the_demo_model_answers_the_same(in_place: list[list[int]], rate: float) -> None:
    run = demo(STREAMED, device="sim", moe_cache_rate=rate)
    assert answers(run) == in_place
    stats = run.engine.stats()
    assert stats.expert_misses > 0
    resident = sum(len(layer.resident) for layer in run.engine.residency().layers)
    assert resident == stats.expert_slots_used <= stats.expert_slots
