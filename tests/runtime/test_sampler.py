"""The sampler against transformers' logits processors and formulas in float64."""

from __future__ import annotations

import math

import pytest
import torch
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.errors import InvalidRequest
from engine.messages import Sampling
from engine.runtime.sampler import CANDIDATES, logprobs, sample, unpack_mask
from engine.runtime.sampling_row import SamplingRow, uniform

VOCAB = 97
CPU = torch.device("cpu")


def logits(rows: int, vocab: int = VOCAB, seed: int = 0, spread: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, vocab, generator=generator) * spread


def row(vocab: int = VOCAB, prompt: tuple[int, ...] = (), **sampling: object) -> SamplingRow:
    return SamplingRow(Sampling(**sampling), list(prompt), vocab, CPU)  # type: ignore[arg-type]


def frequencies(values: torch.Tensor, draws: int = 6000, **sampling: object) -> torch.Tensor:
    """Share of each token when one row is sampled with seeds 0 .. draws - 1."""
    rows = [row(len(values), seed=seed, **sampling) for seed in range(draws)]
    tokens = sample(values.expand(draws, -1), rows)
    return torch.bincount(torch.tensor(tokens), minlength=len(values)).double() / draws


def expected(values: torch.Tensor, **sampling: float) -> torch.Tensor:
    """transformers' distribution, in its own order of processors."""
    ids = torch.zeros(1, 1, dtype=torch.int64)
    scores = values.double().unsqueeze(0)
    if "temperature" in sampling:
        scores = TemperatureLogitsWarper(float(sampling["temperature"]))(ids, scores)
    if "top_k" in sampling:
        scores = TopKLogitsWarper(int(sampling["top_k"]))(ids, scores)
    if "top_p" in sampling:
        scores = TopPLogitsWarper(sampling["top_p"])(ids, scores)
    if "min_p" in sampling:
        scores = MinPLogitsWarper(sampling["min_p"])(ids, scores)
    return scores.softmax(dim=-1)[0]


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0},
        {"temperature": 0.7},
        {"temperature": 2.5},
        {"temperature": 1.0, "top_k": 5},
        {"temperature": 1.0, "top_p": 0.8},
        {"temperature": 1.5, "min_p": 0.1},
        {"temperature": 1.3, "top_k": 20, "top_p": 0.7},
        {"temperature": 2.0, "top_k": 30, "top_p": 0.9, "min_p": 0.05},
    ],
)
def test_distribution_is_that_of_transformers(sampling: dict[str, float]) -> None:
    values = logits(1, spread=1.5)[0]
    measured, wanted = frequencies(values, **sampling), expected(values, **sampling)
    assert set(measured.nonzero().flatten().tolist()) <= set(wanted.nonzero().flatten().tolist())
    # Total variation of 6,000 draws over 97 tokens stays well below this by chance alone.
    assert (measured - wanted).abs().sum() / 2 < 0.06


@pytest.mark.parametrize("top_k", [1, 3, 40])
@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.95])
@pytest.mark.parametrize("min_p", [0.01, 0.3])
def test_kept_tokens_are_those_of_transformers(top_k: int, top_p: float, min_p: float) -> None:
    values = logits(1, seed=3)[0]
    sampling = {"temperature": 2.0, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    wanted = set(expected(values, **sampling).nonzero().flatten().tolist())
    # The last kept token is found by the highest draw, so draws over the range show every one.
    likely = {
        token for token, share in enumerate(expected(values, **sampling).tolist()) if share > 1e-2
    }
    measured = set(frequencies(values, 3000, **sampling).nonzero().flatten().tolist())
    assert likely <= measured <= wanted


def test_greedy_takes_the_highest_and_ignores_seeds() -> None:
    values = logits(4)
    rows = [row(temperature=0, seed=seed) for seed in range(4)]
    assert sample(values, rows) == values.argmax(dim=-1).tolist()


def test_greedy_applies_bias_and_penalties() -> None:
    values = torch.tensor([[3.0, 2.9, 1.0, -1.0]])
    assert sample(values, [row(4, temperature=0, bias={0: -0.2})]) == [1]
    assert sample(values, [row(4, prompt=(0,), temperature=0, repetition_penalty=1.2)]) == [1]
    assert sample(values, [row(4, prompt=(0,), temperature=0, presence_penalty=2.0)]) == [0]


@pytest.mark.parametrize("penalty", [0.7, 1.3, 5.0])
def test_repetition_penalty_is_that_of_transformers(penalty: float) -> None:
    values = logits(1, seed=5)
    prompt, output = [1, 5, 5, 9], [2, 40]
    mine = row(prompt=tuple(prompt), repetition_penalty=penalty)
    for token in output:
        mine.record(token)
    scores = values[0].clone()
    mine.adjust(scores)
    history = torch.tensor([prompt + output])
    wanted = RepetitionPenaltyLogitsProcessor(penalty)(history, values.clone())[0]
    torch.testing.assert_close(scores, wanted)


def test_presence_and_frequency_penalties_follow_the_published_formula() -> None:
    values = logits(1, seed=6)[0]
    mine = row(prompt=(7, 7), presence_penalty=0.4, frequency_penalty=-0.3)
    output = [3, 3, 3, 11]
    for token in output:
        mine.record(token)
    scores = values.clone()
    mine.adjust(scores)
    for token in range(VOCAB):
        count = output.count(token)
        wanted = float(values[token]) - count * -0.3 - (0.4 if count else 0.0)
        assert math.isclose(float(scores[token]), wanted, rel_tol=1e-5, abs_tol=1e-5)


def test_bias_comes_before_penalties() -> None:
    scores = torch.tensor([1.0, 1.0])
    row(2, prompt=(0,), bias={0: 3.0}, repetition_penalty=2.0).adjust(scores)
    assert scores.tolist() == [2.0, 1.0]


def test_mask_bits_name_tokens() -> None:
    allowed = [0, 31, 32, 63, 64, 96]
    words = [0, 0, 0, 0]
    for token in allowed:
        words[token // 32] |= 1 << (token % 32)
    signed = [word - (1 << 32) if word >> 31 else word for word in words]
    mask = torch.tensor([signed], dtype=torch.int32)
    assert unpack_mask(mask, VOCAB)[0].nonzero().flatten().tolist() == allowed
    for seed in range(200):
        (token,) = sample(logits(1), [row(temperature=5.0, seed=seed)], mask)
        assert token in allowed
    assert sample(logits(1), [row(temperature=0)], mask)[0] in allowed


def test_an_empty_mask_is_an_error() -> None:
    mask = torch.zeros(1, 4, dtype=torch.int32)
    with pytest.raises(InvalidRequest, match="no token"):
        sample(logits(1), [row()], mask)


def test_logits_are_left_as_they_are() -> None:
    values = logits(2)
    before = values.clone()
    sample(values, [row(bias={1: 5.0}), row(prompt=(3,), repetition_penalty=1.5, top_k=4)])
    assert torch.equal(values, before)


MIXTURE = [
    {"temperature": 0},
    {"temperature": 1.0, "seed": 1},
    {"temperature": 0.8, "top_p": 0.9, "seed": 2},
    {"temperature": 1.2, "top_k": 7, "seed": 3},
    {"temperature": 1.0, "min_p": 0.02, "seed": 4, "bias": {5: 2.0}},
    {"temperature": 1.0, "seed": 5, "frequency_penalty": 1.0},
]


def test_a_row_draws_the_same_alone_and_in_any_batch() -> None:
    values = logits(len(MIXTURE), vocab=4000, seed=9)
    rows = [row(4000, **each) for each in MIXTURE]
    together = sample(values, rows)
    alone = [sample(values[i : i + 1], [each])[0] for i, each in enumerate(rows)]
    reverse = sample(values.flip(0), rows[::-1])[::-1]
    assert together == alone == reverse


def test_a_wide_row_does_not_change_its_neighbours() -> None:
    flat = torch.zeros(1, 5000)
    steep = logits(1, vocab=5000, seed=2)
    wide = row(5000, top_p=0.99, seed=1)
    narrow = row(5000, top_p=0.5, seed=2)
    together = sample(torch.cat([flat, steep]), [wide, narrow])
    assert together == sample(flat, [wide]) + sample(steep, [narrow])


def test_filters_that_keep_more_than_the_candidates_see_all_tokens() -> None:
    vocab = 4 * CANDIDATES
    values = torch.zeros(vocab)
    tokens = sample(values.expand(400, -1), [row(vocab, top_p=0.999, seed=n) for n in range(400)])
    assert max(tokens) > 3 * CANDIDATES
    # top_p of a half over a flat distribution keeps the first half, ties going to lower ids.
    tokens = sample(values.expand(400, -1), [row(vocab, top_p=0.5, seed=n) for n in range(400)])
    assert CANDIDATES < max(tokens) < 2 * CANDIDATES + 1


def test_top_p_refers_to_what_a_large_top_k_left() -> None:
    vocab = 8 * CANDIDATES
    values = -torch.arange(vocab) / 1000
    sampling = {"top_k": CANDIDATES + 76, "top_p": 0.5}
    kept = int(expected(values, **sampling).count_nonzero())
    assert kept < 500
    rows = [row(vocab, seed=n, **sampling) for n in range(1500)]
    tokens = sample(values.expand(len(rows), -1), rows)
    assert 0.9 * kept < max(tokens) < kept


def test_seed_and_position_give_the_draw() -> None:
    values = logits(1, spread=0.5)

    def text(seed: int) -> list[int]:
        mine, tokens = row(seed=seed), []
        for _ in range(20):
            (token,) = sample(values, [mine])
            mine.record(token)
            tokens.append(token)
        return tokens

    assert text(11) == text(11)
    assert text(11) != text(12)
    assert len(set(text(11))) > 5
    assert row(seed=None).seed != row(seed=None).seed


@pytest.mark.parametrize("seed", [0, 1, -5, 2**80])
def test_draws_are_uniform(seed: int) -> None:
    draws = torch.tensor([uniform(seed, index) for index in range(20_000)], dtype=torch.float64)
    assert draws.min() >= 0 and draws.max() < 1
    ordered = draws.sort().values
    steps = torch.arange(1, 20_001, dtype=torch.float64) / 20_000
    # Kolmogorov-Smirnov at one in a million: 2.7 / sqrt(n).
    assert (ordered - steps).abs().max() < 2.7 / math.sqrt(20_000)
    first = torch.tensor([uniform(each, 0) for each in range(2000)], dtype=torch.float64)
    assert abs(float(first.mean()) - 0.5) < 0.035
    lag = torch.corrcoef(torch.stack([draws[:-1], draws[1:]]))[0, 1]
    assert abs(float(lag)) < 0.04


@pytest.mark.parametrize("temperature", [1e-6, 1e-38, 1e-300])
def test_a_tiny_temperature_is_greedy_and_finite(temperature: float) -> None:
    values = logits(1)
    rows = [row(temperature=temperature, seed=1), row(temperature=temperature, top_p=0.9, seed=1)]
    assert sample(values.expand(2, -1), rows) == [int(values.argmax())] * 2


def test_logprobs_are_the_models_own() -> None:
    values = logits(3, seed=8)
    results = logprobs(values, [4, 5, 6], [-1, 0, 5])
    reference = values.double().log_softmax(dim=-1)
    assert results[0] == (None, [])
    assert results[1][0] == pytest.approx(float(reference[1, 5]), abs=1e-5)
    assert results[1][1] == []
    chosen, top = results[2]
    assert chosen == pytest.approx(float(reference[2, 6]), abs=1e-5)
    order = reference[2].argsort(descending=True)[:5].tolist()
    assert [each.token for each in top] == order
    assert [each.logprob for each in top] == pytest.approx(reference[2][order].tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"min_p": 1.5}, "min_p"),
        ({"presence_penalty": math.inf}, "presence_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"bias": {VOCAB: 1.0}}, "logit_bias"),
        ({"bias": {0: math.nan}}, "logit_bias"),
    ],
)
def test_parameters_out_of_range_are_refused(sampling: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        row(**sampling)
    assert error.value.param == param
