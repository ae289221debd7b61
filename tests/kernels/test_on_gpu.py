"""What the interpreter cannot show: the real tiles, long contexts, captured graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from engine.context.batch import SequenceSlice
from engine.kernels import attention
from engine.kernels.gpu.attention import attend, attention_tables, paged_attention
from engine.kernels.gpu.attention_decode import decode_attention
from engine.kernels.gpu.sampling import UNSETTLED, sample_rows
from engine.messages import Sampling
from engine.runtime.sampler import sample
from engine.runtime.sampling_row import SamplingRow

pytestmark = pytest.mark.gpu

HEADS, KV_HEADS, DIM, PAGE = 16, 2, 256, 16
SCALE = DIM**-0.5
VOCABULARY = 151936
ROUNDED = 4e-3
"""Relative error of values that were rounded to bfloat16 once."""


@pytest.fixture
def cuda() -> torch.device:
    torch.manual_seed(0)
    return torch.device("cuda")


def paged(
    device: torch.device, chunks: Sequence[tuple[int, int]]
) -> tuple[Tensor, Tensor, tuple[SequenceSlice, ...]]:
    """Keys, values and sequences (length, context) whose pages lie in no order."""
    needed = [-(-(length + context) // PAGE) for length, context in chunks]
    shape = (sum(needed), 2, 2, PAGE, KV_HEADS, DIM)
    storage = torch.randn(shape, device=device, dtype=torch.bfloat16)
    own = iter(torch.randperm(sum(needed)).to(device).split(needed))
    starts = [sum(length for length, _ in chunks[:number]) for number in range(len(chunks))]
    sequences = tuple(
        SequenceSlice(start, length, context, next(own), 0)
        for start, (length, context) in zip(starts, chunks, strict=True)
    )
    return storage[:, 1, 0], storage[:, 1, 1], sequences


def attended(
    q: Tensor, keys: Tensor, values: Tensor, sequences: tuple[SequenceSlice, ...], gate: Tensor
) -> Tensor:
    """The torch reference in float32, over a copy of each sequence's own pages."""
    out = torch.empty(q.shape, device=q.device)
    for seq in sequences:
        rows = slice(seq.start, seq.start + seq.length)
        own = torch.arange(len(seq.pages), device=q.device)
        alone = (replace(seq, start=0, pages=own),)
        pages = keys[seq.pages].float(), values[seq.pages].float()
        out[rows] = attention.paged_attention.reference(q[rows].float(), *pages, alone, SCALE)
    return out * gate.float().sigmoid()


def error(got: Tensor, wanted: Tensor) -> float:
    return float((got.float() - wanted).norm() / wanted.norm())


def queries(device: torch.device, rows: int) -> tuple[Tensor, Tensor]:
    q, gate = torch.randn((rows, HEADS, 2 * DIM), device=device, dtype=torch.bfloat16).chunk(
        2, dim=-1
    )
    return q, gate


@pytest.mark.parametrize("context", [0, 63, 8191, 8192, 40000])
def test_a_token_s_bits_do_not_depend_on_the_batch(cuda: torch.device, context: int) -> None:
    keys, values, sequences = paged(cuda, [(1, context), (1, 5), (1, 9000), (1, 777)])
    q, gate = queries(cuda, 4)
    tables = attention_tables(q, sequences, DIM)
    together = attend(q, keys, values, tables, SCALE, gate)
    assert error(together, attended(q, keys, values, sequences, gate)) < ROUNDED
    first = attention_tables(q, sequences[:1], DIM)
    alone = attend(q[:1], keys, values, first, SCALE, gate[:1])
    assert torch.equal(alone, together[:1])


@pytest.mark.parametrize("context", [0, 1000])
def test_a_chunk_s_bits_do_not_depend_on_where_it_was_cut(cuda: torch.device, context: int) -> None:
    keys, values, (seq,) = paged(cuda, [(700, context)])
    q, gate = queries(cuda, 700)
    whole = paged_attention(q, keys, values, (seq,), SCALE)
    gated = attend(q, keys, values, attention_tables(q, (seq,), DIM), SCALE, gate)
    assert error(gated, attended(q, keys, values, (seq,), gate)) < ROUNDED
    for cut in (2, 130, 512, 697):
        parts = (
            SequenceSlice(0, cut, context, seq.pages, 0),
            SequenceSlice(cut, 700 - cut, context + cut, seq.pages, 0),
        )
        assert torch.equal(paged_attention(q, keys, values, parts, SCALE), whole)


def test_one_graph_serves_every_length(cuda: torch.device) -> None:
    keys, values, sequences = paged(cuda, [(1, 9999), (1, 9999)])
    q, gate = queries(cuda, 2)
    table = torch.stack([seq.pages for seq in sequences]).to(torch.int32)
    lengths = torch.tensor([1, 1], dtype=torch.int32, device=cuda)

    def step() -> Tensor:
        return decode_attention(q, keys, values, table, lengths, SCALE, gate)

    step()  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    for pair in ([1, 10000], [8192, 64], [0, 65], [5000, 0]):
        lengths.copy_(torch.tensor(pair, dtype=torch.int32))
        graph.replay()
        assert not out.isnan().any()
        assert torch.equal(out, step())


@pytest.mark.parametrize(
    "parameters",
    [
        Sampling(temperature=0.0),
        Sampling(temperature=1.0, top_k=20, top_p=0.95),
        Sampling(temperature=1.3, top_k=64, min_p=0.02),
        Sampling(temperature=0.5, top_p=0.8),
        Sampling(temperature=1.0),
    ],
    ids=str,
)
def test_tokens_are_the_sampler_s(cuda: torch.device, parameters: Sampling) -> None:
    logits = 3 * torch.randn(64, VOCABULARY, device=cuda)
    # A few tokens far above the others, as models have them.
    logits[:, :20] += 10
    rows = [SamplingRow(parameters, [], VOCABULARY, cuda) for _ in range(64)]
    settings = [parameters.temperature, parameters.top_k, parameters.top_p, parameters.min_p]
    values = [[*settings, row.draw()] for row in rows]
    packed = torch.tensor(values, dtype=torch.float64, device=cuda)
    got, wanted = sample_rows(logits, packed).tolist(), sample(logits, rows)
    assert UNSETTLED not in got
    # The draw falls within rounding of an edge between two tokens about once in a million.
    assert got == wanted
    assert sample_rows(logits[:1], packed[:1]).tolist() == got[:1]
