"""What a captured step reads, in host memory: the graph's copy is made here by hand."""

from __future__ import annotations

import torch

from engine.messages import Sampling
from engine.runtime.decode_inputs import DecodeInputs
from engine.runtime.sampling_row import SamplingRow
from engine.scheduler.sequence import Piece, Plan, Sequence

CPU = torch.device("cpu")


def sequence(number: int, pages: list[int]) -> Sequence:
    tokens = [100 * number + place for place in range(40)]
    return Sequence(number, number, 3, tokens, 8, frozenset(), 2, pages=pages, row=number)


def step(inputs: DecodeInputs, *members: tuple[Sequence, int]) -> None:
    plan = Plan(tuple(Piece(each, place, 1, True, False) for each, place in members))
    rows = [SamplingRow(Sampling(seed=7, top_k=5), [], 50, CPU) for _ in members]
    inputs.write(plan, rows)
    inputs.fetch()


def test_before_anything_is_written_rows_are_sequences_of_one_token() -> None:
    inputs = DecodeInputs(3, 4, CPU)
    inputs.fetch()
    rows = inputs.rows(2)
    assert [part.tolist() for part in (rows.tokens, rows.positions)] == [[0, 0], [0, 0]]
    assert [part.tolist() for part in (rows.lengths, rows.states)] == [[1, 1], [0, 0]]


def test_a_step_s_rows_and_parameters() -> None:
    inputs = DecodeInputs(3, 4, CPU)
    first, second = sequence(1, [5, 6, 7]), sequence(2, [8])
    step(inputs, (first, 33), (second, 9))
    rows = inputs.rows(2)
    assert rows.tokens.tolist() == [133, 209]
    assert rows.positions.tolist() == [33, 9]
    assert rows.lengths.tolist() == [34, 10]
    assert rows.states.tolist() == [1, 2]
    assert rows.pages[:, :3].tolist() == [[5, 6, 7], [8, 0, 0]]
    own = SamplingRow(Sampling(seed=7, top_k=5), [], 50, CPU)
    filters = own.sampling.temperature, 5, own.sampling.top_p, own.sampling.min_p
    wanted = torch.tensor([[*filters, own.draw()]] * 2, dtype=torch.float64)
    assert torch.equal(inputs.parameters(2), wanted)
    assert inputs.parameters(2).is_contiguous()


def test_pages_follow_their_sequences() -> None:
    inputs = DecodeInputs(2, 4, CPU)
    first, second = sequence(1, [5]), sequence(2, [8, 9])
    step(inputs, (first, 15), (second, 20))
    first.pages.append(3)
    step(inputs, (first, 16), (second, 21))
    assert inputs.rows(2).pages[:, :2].tolist() == [[5, 3], [8, 9]]
    step(inputs, (second, 22))
    assert inputs.rows(1).pages[0, :2].tolist() == [8, 9]
    second.pages[:] = [1, 2]
    second.preemptions += 1
    step(inputs, (second, 23))
    assert inputs.rows(1).pages[0, :2].tolist() == [1, 2]
