"""Attention over pages, by instruction set, against its definition in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from engine.context.batch import SequenceSlice
from engine.kernels.attention import paged_attention

pytestmark = pytest.mark.usefixtures("tier")
PAGE = 16


def by_definition(q: Tensor, keys: Tensor, values: Tensor, seq: SequenceSlice) -> Tensor:
    """float64 [length, heads, D] of one sequence."""
    total = seq.context + seq.length
    k, v = (pages[seq.pages].flatten(0, 1)[:total].double() for pages in (keys, values))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    rows = q[seq.start : seq.start + seq.length].double()
    scores = torch.einsum("qhd,khd->hqk", rows, k) / math.sqrt(q.shape[-1])
    unseen = torch.ones(seq.length, total, dtype=torch.bool).triu(seq.context + 1)
    weights = torch.softmax(scores.masked_fill(unseen, -math.inf), -1)
    # What is not seen does not count, be it no number at all.
    parts = [weights[:, i, : seq.context + i + 1] for i in range(seq.length)]
    return torch.stack([torch.einsum("hk,khd->hd", part, v[: part.shape[1]]) for part in parts])


def batch(shapes: list[tuple[int, int]], pool: int) -> tuple[SequenceSlice, ...]:
    """(context, length) of sequences that share no page."""
    free, start, sequences = torch.randperm(pool), 0, []
    for context, length in shapes:
        count = -(-(context + length) // PAGE)
        pages, free = free[:count].clone(), free[count:]
        sequences.append(SequenceSlice(start, length, context, pages, 0))
        start += length
    return tuple(sequences)


def attend(q: Tensor, keys: Tensor, values: Tensor, sequences: tuple[SequenceSlice, ...]) -> Tensor:
    return paged_attention(q, keys, values, sequences, q.shape[-1] ** -0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size"),
    [(9, 3, 64), (2, 2, 32), (8, 1, 96), (4, 4, 128), (12, 2, 256), (70, 1, 64)],
)
def test_every_row_equals_its_definition_whatever_is_beside_it(
    dtype: torch.dtype, heads: int, kv_heads: int, size: int
) -> None:
    torch.manual_seed(heads)
    shapes = [(0, 130), (63, 1), (64, 9), (1, 7), (0, 1), (511, 1), (512, 1), (1200, 1), (700, 33)]
    sequences = batch(shapes, 240)
    # As in the engine's pool: keys and values of a page side by side.
    pool = torch.randn(240, 2, PAGE, kv_heads, size).to(dtype)
    keys, values = pool[:, 0], pool[:, 1]
    q = (torch.randn(sequences[-1].start + 33, heads, size) * 2).to(dtype)
    out = attend(q, keys, values, sequences)
    assert out.dtype == dtype
    for seq in sequences:
        rows = slice(seq.start, seq.start + seq.length)
        expected = by_definition(q, keys, values, seq)
        error = float((out[rows].double() - expected).norm() / expected.norm())
        assert error <= (3e-6 if dtype == torch.float32 else 2e-3)
        alone = (SequenceSlice(0, seq.length, seq.context, seq.pages, 0),)
        for threads in (1, 3):
            torch.set_num_threads(threads)
            assert torch.equal(attend(q[rows], keys, values, alone), out[rows])
        torch.set_num_threads(1)


@pytest.mark.parametrize("length", [1, 2, 8, 70])
def test_what_is_not_seen_may_be_no_number(length: int) -> None:
    torch.manual_seed(length)
    context = 40
    keys, values = torch.randn(8, PAGE, 2, 64), torch.randn(8, PAGE, 2, 64)
    sequences = batch([(context, length)], 8)
    pages = sequences[0].pages
    q = torch.randn(length, 4, 64)
    before = attend(q, keys, values, sequences)
    # Beyond the sequence's end, and in pages that are not its own.
    rest = (context + length) % PAGE
    for pool in (keys, values):
        pool[[page for page in range(8) if page not in pages.tolist()]] = math.nan
        if rest:
            pool[pages[-1], rest:] = math.inf
    assert torch.equal(attend(q, keys, values, sequences), before)
    # The last token itself: rows before it do not change.
    place = context + length - 1
    keys[pages[place // PAGE], place % PAGE] = math.nan
    after = attend(q, keys, values, sequences)
    assert torch.equal(after[:-1], before[:-1])
    assert bool(after[-1].isnan().all())


@pytest.mark.parametrize("length", [1, 9])
def test_extreme_scores_are_weighed_as_by_definition(length: int) -> None:
    torch.manual_seed(3)
    keys, values = torch.randn(40, PAGE, 1, 32), torch.randn(40, PAGE, 1, 32)
    sequences = batch([(600, length)], 40)
    pages = sequences[0].pages
    q = torch.randn(length, 1, 32)
    for factor in (0.0, 1e-30, 40.0, 1e4):
        expected = by_definition(q * factor, keys, values, sequences[0])
        got = attend(q * factor, keys, values, sequences)
        assert float((got.double() - expected).norm()) <= 2e-4 * float(expected.norm())
    # A position of minus infinity weighs nothing, also where all before it do not.
    q = q.abs()
    keys[pages[:35]] = -math.inf
    expected = by_definition(q, keys, values, sequences[0])
    got = attend(q, keys, values, sequences)
    assert float((got.double() - expected).norm()) <= 1e-6 * float(expected.norm())
    keys[pages[36], 0] = math.inf
    assert bool(attend(q, keys, values, sequences).isnan().all())


def test_other_shapes_are_the_references() -> None:
    keys, values = torch.randn(4, PAGE, 2, 24), torch.randn(4, PAGE, 2, 24)
    sequences = batch([(3, 5)], 4)
    q = torch.randn(5, 2, 24)
    got = attend(q, keys, values, sequences)
    assert torch.equal(got, paged_attention.reference(q, keys, values, sequences, 24**-0.5))


def test_a_page_that_is_not_there_is_refused() -> None:
    keys, values = torch.randn(4, PAGE, 2, 32), torch.randn(4, PAGE, 2, 32)
    for pages in ([0, 4], [0, -1], [0]):
        beyond = (SequenceSlice(0, 1, 20, torch.tensor(pages), 0),)
        with pytest.raises(RuntimeError, match="refused attention"):
            attend(torch.randn(1, 2, 32), keys, values, beyond)
