"""The engine's logits against transformers', for every family, chunking and company."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.context.batch import Batch, SequenceSlice
from tests.parity.conftest import Made
from tests.parity.running import Runner, Sequence, in_company, relative_error
from tests.parity.tiny import FAMILIES, VOCAB, logits_of, prompt

PREFILL, DECODE = 300, 32
TOLERANCE = 1e-4
SURE = 1e-3
"""Where the best two logits are closer than this, rounding may choose."""

Model = tuple[Any, Path, Runner]


@pytest.fixture(scope="module", params=list(FAMILIES))
def model(request: pytest.FixtureRequest, made: Callable[[str], Made]) -> Model:
    """transformers' model, its folder, and the engine's."""
    reference, folder = made(request.param)
    return reference, folder, Runner(folder)


@pytest.fixture
def sequence(model: Model) -> Iterator[Sequence]:
    made = Sequence(1)
    yield made
    model[2].release(made)


def check_greedy(tokens: Tensor, expected: Tensor) -> None:
    """`tokens` follow `expected` logits wherever those leave no doubt: nearly everywhere."""
    best = expected.topk(2, dim=-1).values
    sure = best[:, 0] - best[:, 1] > SURE
    assert sure.float().mean() > 0.9
    assert torch.equal(tokens[sure], expected.argmax(-1)[sure])


@pytest.mark.parametrize("chunk", [PREFILL, 113, 64, 7])
def test_prefill_and_decode_equal_the_reference(
    model: Model, sequence: Sequence, chunk: int
) -> None:
    reference, _, runner = model
    tokens = prompt(PREFILL)
    prefill = runner.prefill(sequence, tokens, chunk)
    greedy, decode = runner.decode(sequence, prefill, DECODE)
    expected = logits_of(reference, torch.cat([tokens, greedy]))
    assert relative_error(prefill, expected[:PREFILL]) <= TOLERANCE
    assert relative_error(decode, expected[PREFILL:]) <= TOLERANCE
    check_greedy(greedy, expected[PREFILL - 1 : -1])


def test_company_changes_nothing(model: Model) -> None:
    reference, _, runner = model
    prompts = [prompt(n, seed=n) for n in (PREFILL, 1, 37, 64)]
    ran = in_company(runner, prompts, [50, 1, 1, 33], DECODE)
    for tokens, (greedy, logits) in zip(prompts, ran, strict=True):
        assert len(greedy) == DECODE
        expected = logits_of(reference, torch.cat([tokens, greedy]))
        assert relative_error(logits[: len(tokens)], expected[: len(tokens)]) <= TOLERANCE
        assert relative_error(logits[len(tokens) :], expected[len(tokens) :]) <= TOLERANCE
        check_greedy(greedy, expected[len(tokens) - 1 : -1])
    assert runner.allocator.free_pages == runner.allocator.pages


def test_bfloat16_rounds_no_worse_than_the_reference(model: Model) -> None:
    reference, folder, _ = model
    tokens = prompt(80)
    exact = logits_of(reference, tokens)
    narrow = logits_of(copy.deepcopy(reference).to(torch.bfloat16), tokens)
    runner = Runner(folder, dtype=torch.bfloat16)
    assert runner.kv.dtype == torch.bfloat16
    logits = runner.prefill(Sequence(0), tokens, 33)
    assert logits.dtype == torch.float32
    assert relative_error(logits, exact) <= 1.2 * relative_error(narrow, exact)


def test_no_logits_are_computed_that_nobody_wants(model: Model) -> None:
    runner = model[2]
    sequence = Sequence(0)
    runner.step((sequence, prompt(5)))
    none = torch.tensor([], dtype=torch.int64)
    pages = torch.tensor(sequence.pages)
    batch = Batch(prompt(2), torch.tensor([5, 6]), (SequenceSlice(0, 2, 5, pages, 0),), none)
    assert runner.model.forward(batch, runner.kv, runner.states).shape == (0, VOCAB)
    runner.release(sequence)
