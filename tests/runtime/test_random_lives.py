"""Many requests at random on real models, in too little memory, some of them harmful.

Each survivor's tokens are those that it gives alone, and everyone ends once.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from engine.messages import Finished, RequestFailed, Sampling, Submit
from engine.runtime.debug import DebugFaults
from tests.runtime.conftest import VOCAB
from tests.runtime.driving import Driver, driver, prompt

MARK = VOCAB - 1


def lives(draw: random.Random, count: int) -> list[Submit]:
    submits = []
    for number in range(count):
        tokens = prompt(draw.randint(1, 30), seed=number)
        if draw.random() < 0.15:
            tokens[draw.randrange(len(tokens))] = MARK
        sampling = Sampling(temperature=draw.choice([0, 0.8, 1.5]), top_p=0.9, seed=number)
        submits.append(
            Submit(
                request=number, tokens=tokens, max_tokens=draw.randint(30, 90), sampling=sampling
            )
        )
    return submits


def live_through(run: Driver, submits: list[Submit], draw: random.Random) -> set[int]:
    """Submit all, some while others run; cancel or stop a few. Returns those disturbed."""
    waiting, disturbed = list(submits), set()
    while waiting or run.engine.has_work:
        for _ in range(min(len(waiting), draw.choice([0, 0, 1, 3]))):
            run.engine.submit(waiting.pop(0))
        run.step()
        live = [sequence.request for sequence in run.engine.scheduler.live]
        if live and draw.random() < 0.04:
            number = draw.choice(live)
            disturbed.add(number)
            if draw.random() < 0.5:
                run.engine.cancel(number)
            else:
                run.engine.stop_at(number, draw.randint(0, 5))
    return disturbed


@pytest.mark.parametrize("seed", [1, 2])
def test_everyone_ends_once_with_the_tokens_of_a_lone_run(model: Path, seed: int) -> None:
    draw = random.Random(seed)
    submits = lives(draw, 12)
    device = {"device": "sim", "moe_cache_rate": 0.3} if seed == 2 else {}
    run = driver(
        model,
        DebugFaults(fail_token=MARK),
        kv_tokens=128,
        max_sequences=4,
        prefill_chunk_tokens=16,
        **device,
    )
    disturbed = live_through(run, submits, draw)
    assert run.engine.scheduler.preemptions > 0
    lone = driver(model, prefill_chunk_tokens=16).engine
    for submit in submits:
        end, tokens = run.end(submit.request), run.tokens(submit.request)
        alone = Driver(lone).run([submit]).tokens(submit.request)
        assert tokens == alone[: len(tokens)]
        if submit.request in disturbed:
            continue
        if MARK in submit.tokens:
            assert isinstance(end, RequestFailed) and tokens == []
        else:
            assert isinstance(end, Finished) and tokens == alone
