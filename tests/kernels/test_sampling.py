"""Sampling on the GPU (or the interpreter) against the runtime's own sampler."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from engine.kernels.gpu import sampling
from engine.kernels.gpu.sampling import sample_rows
from engine.kernels.sampling import NOT_FINITE, UNSETTLED
from engine.kernels.sampling import sample_rows as operation
from engine.messages import Sampling
from engine.runtime.sampler import sample
from engine.runtime.sampling_row import SamplingRow

VOCABULARY = 250
MOST = 8


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_BLOCK", 128)
    monkeypatch.setattr(sampling, "MOST", MOST)


@dataclass(frozen=True)
class Rows:
    logits: torch.Tensor
    rows: list[SamplingRow]

    @property
    def parameters(self) -> torch.Tensor:
        values = [
            [s.temperature, s.top_k, s.top_p, s.min_p, row.draw()]
            for row in self.rows
            for s in [row.sampling]
        ]
        return torch.tensor(values, dtype=torch.float64, device=self.logits.device)


def made(samplings: list[Sampling], device: torch.device, vocabulary: int = VOCABULARY) -> Rows:
    random = torch.Generator().manual_seed(len(samplings))
    logits = 3 * torch.randn((len(samplings), vocabulary), generator=random)
    rows = [SamplingRow(each, [], vocabulary, device) for each in samplings]
    return Rows(logits.to(device), rows)


def draws(count: int, **parameters: float) -> list[Sampling]:
    return [Sampling(seed=seed, **parameters) for seed in range(count)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "parameters",
    [
        {"temperature": 0.0, "top_k": 100},
        {"temperature": 1.0, "top_k": 7, "top_p": 0.95},
        {"temperature": 0.6, "top_k": 1},
        {"temperature": 1.3, "top_k": MOST, "min_p": 0.05},
        {"temperature": 1.0, "top_k": 5, "top_p": 1.0},
        {"temperature": 0.2, "top_p": 0.7},
        {"temperature": 0.3, "min_p": 0.3},
        {"temperature": 1.0},
        {"temperature": 0.01},
        {"temperature": 5.0},
    ],
    ids=str,
)
def test_a_token_is_the_one_that_the_sampler_takes(
    parameters: dict[str, float], device: torch.device
) -> None:
    rows = made(draws(4, **{"top_p": 1.0, "top_k": 0, "min_p": 0.0} | parameters), device)
    got = sample_rows(rows.logits, rows.parameters)
    assert got.tolist() == sample(rows.logits, rows.rows)


@pytest.mark.parametrize(
    "parameters",
    [
        {"temperature": 1.0, "top_k": MOST + 1},
        {"temperature": 9.0, "top_p": 0.99},
        {"temperature": 9.0, "min_p": 1e-4},
    ],
    ids=str,
)
def test_a_row_whose_filters_keep_more_is_left_to_the_sampler(
    parameters: dict[str, float], device: torch.device
) -> None:
    rows = made(draws(2, **{"top_p": 1.0, "top_k": 0, "min_p": 0.0} | parameters), device)
    assert sample_rows(rows.logits, rows.parameters).tolist() == [UNSETTLED, UNSETTLED]


def test_tokens_that_a_mask_bars_are_never_taken(device: torch.device) -> None:
    samplings = [
        *draws(4, temperature=9.0),
        *draws(4, temperature=9.0, top_k=8),
        *draws(1, temperature=0.0),
    ]
    rows = made(samplings, device)
    allowed = torch.tensor([3, 130, 131, 240], device=device)
    barred = torch.ones(VOCABULARY, dtype=torch.bool, device=device)
    barred[allowed] = False
    rows.logits[:, barred] = -torch.inf
    got = sample_rows(rows.logits, rows.parameters)
    assert set(got.tolist()) <= set(allowed.tolist())
    assert got.tolist() == sample(rows.logits, rows.rows)
    rows.logits[2] = -torch.inf
    rows.logits[-1] = -torch.inf
    left = sample_rows(rows.logits, rows.parameters)
    assert left.tolist() == [*got[:2].tolist(), UNSETTLED, *got[3:-1].tolist(), UNSETTLED]


def test_equal_logits_go_by_ascending_id(device: torch.device) -> None:
    rows = made(draws(8, temperature=1.0, top_k=8, top_p=1.0), device)
    rows.logits[:] = 0.0
    assert sample_rows(rows.logits, rows.parameters).tolist() == sample(rows.logits, rows.rows)
    greedy = made(draws(1, temperature=0.0), device)
    greedy.logits[:] = torch.tensor([-0.0, 0.0] * (VOCABULARY // 2), device=device)
    assert sample_rows(greedy.logits, greedy.parameters).tolist() == [0]


@pytest.mark.parametrize("vocabulary", [1, 5, 128, 129])
def test_small_vocabularies_are_sampled_too(vocabulary: int, device: torch.device) -> None:
    rows = made(
        [
            *draws(4, temperature=1.0, top_k=0, top_p=0.7),
            *draws(4, temperature=1.0, top_k=0, top_p=1.0),
            *draws(4, temperature=1.0, top_k=7, top_p=0.9),
        ],
        device,
        vocabulary,
    )
    got = sample_rows(rows.logits, rows.parameters).tolist()
    wanted = sample(rows.logits, rows.rows)
    assert [token for token in got if token != UNSETTLED] == [
        want for token, want in zip(got, wanted, strict=True) if token != UNSETTLED
    ]
    assert vocabulary > MOST or UNSETTLED not in got


def test_a_draw_of_either_end_takes_a_token_with_weight(device: torch.device) -> None:
    rows = made(
        [*draws(2, temperature=1.0, top_p=1.0), *draws(2, temperature=1.0, top_k=3)], device
    )
    rows.logits[:, :5] = rows.logits[:, -5:] = -torch.inf
    parameters = rows.parameters
    parameters[:, 4] = torch.tensor([0.0, 1 - 2.0**-53, 0.0, 1 - 2.0**-53], dtype=torch.float64)
    got = sample_rows(rows.logits, parameters).tolist()
    best = rows.logits[2:].topk(3).indices.tolist()
    assert got == [5, VOCABULARY - 6, best[0][0], best[1][2]]


def test_a_row_s_token_does_not_depend_on_its_neighbours(device: torch.device) -> None:
    samplings = [
        *draws(2, temperature=1.0, top_k=6, top_p=0.9),
        *draws(2, temperature=1.0, top_p=1.0),
    ]
    rows = made(samplings, device)
    together = sample_rows(rows.logits, rows.parameters)
    for index in range(4):
        one = slice(index, index + 1)
        alone = sample_rows(rows.logits[one], rows.parameters[one])
        assert torch.equal(alone, together[one])


def test_parameters_of_another_shape_are_refused(device: torch.device) -> None:
    with pytest.raises(ValueError, match="parameters"):
        sample_rows(torch.zeros(2, 10), torch.zeros(2, 4, dtype=torch.float64))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # the interpreter's NumPy
@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(
    "parameters", [{"top_k": 5}, {"top_p": 1.0}, {"temperature": 0.0}], ids=str
)
def test_a_row_that_is_not_finite_is_told_where_that_is_asked(
    odd: float, parameters: dict[str, float], device: torch.device
) -> None:
    rows = made(draws(3, **{"top_p": 1.0, "top_k": 0} | parameters), device)
    rows.logits[1, 140] = odd
    out = torch.zeros(3, dtype=torch.int64, device=device)
    got = sample_rows(rows.logits, rows.parameters, finite=True, out=out)
    assert got is out
    wanted = sample(rows.logits[::2], rows.rows[::2])
    assert out.tolist() == [wanted[0], NOT_FINITE, wanted[1]]
    reference = operation.reference(rows.logits, rows.parameters, finite=True)
    assert reference.tolist() == [UNSETTLED, NOT_FINITE, UNSETTLED]
