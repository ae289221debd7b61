"""Captured steps: the bits of steps that are computed layer by layer, at any cache rate."""

from __future__ import annotations

import pytest
import torch

from engine.messages import Sampled, Sampling, Submit
from engine.options import EngineOptions
from engine.runtime.engine import Engine
from tests.runtime.driving import Driver

pytestmark = pytest.mark.gpu

REQUESTS, TOKENS = 10, 40


def answers(engine: Engine, sampling: Sampling) -> list[list[Sampled]]:
    """Of prompts of several lengths, which start and end at several times."""
    chance = torch.Generator().manual_seed(3)
    driver = Driver(engine)
    for number in range(REQUESTS):
        length = 1 + 37 * number
        tokens = torch.randint(engine.ready.vocab_size, (length,), generator=chance).tolist()
        submit = Submit(
            request=number,
            tokens=tokens,
            # The last one ends long after the others.
            max_tokens=TOKENS - 3 * number + (TOKENS if number == REQUESTS - 1 else 0),
            sampling=sampling,
            logprobs=4,
        )
        engine.submit(submit)
        driver.step(3 if number % 2 else 0)
    driver.run()
    return [driver.sampled(number) for number in range(REQUESTS)]


def load(rate: float, *, captured: bool) -> Engine:
    options = EngineOptions(
        model="demo", device="cuda", moe_cache_rate=rate, context_tokens=1024, max_sequences=6
    )
    engine = Engine.load(options)
    assert engine._runner._graphs is not None
    if not captured:
        engine._runner._graphs = None
    return engine


@pytest.mark.parametrize("sampling", [Sampling(temperature=0), Sampling(temperature=1, seed=5)])
def test_a_captured_step_gives_the_bits_of_a_plain_one(sampling: Sampling) -> None:
    plain = load(1.0, captured=False)
    expected = answers(plain, sampling)
    plain.close()
    for rate in (1.0, 0.4):
        engine = load(rate, captured=True)
        graphs = engine._runner._graphs
        assert graphs is not None
        assert answers(engine, sampling) == expected
        assert {1, 2, 3, 4, 5, 6} <= set(graphs.replays)
        counters = engine.stats()
        assert counters.expert_hits > 0
        assert (counters.expert_misses > 0) == (rate < 1)
        engine.close()


def test_slots_that_go_and_come_back_change_no_bit() -> None:
    """With every expert in a slot a graph has no fills: it is captured anew once that is over."""
    plain = load(0.4, captured=False)
    sampling = Sampling(temperature=0)
    expected = answers(plain, sampling)
    plain.close()
    engine = load(1.0, captured=True)
    experts, graphs = engine.parts.experts, engine._runner._graphs
    assert experts is not None and graphs is not None and all(experts.complete)
    whole = experts.slots
    for slots in (whole, tuple(count // 3 for count in whole), whole):
        experts.resize(slots)
        if slots == whole:
            experts.fill_all()
        before = graphs.replays.total()
        assert answers(engine, sampling) == expected
        assert graphs.replays.total() > before
    engine.close()
