"""Paged attention on the GPU (or the interpreter) against softmax in float64."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from engine.context.batch import SequenceSlice
from engine.kernels.gpu import attention_decode, attention_prefill
from engine.kernels.gpu.attention import attend, attention_tables, paged_attention
from engine.kernels.gpu.attention_decode import decode_attention

PAGE = 4
FEW_LANES = 4


@pytest.fixture(autouse=True)
def short_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few positions then take several spans of several lanes."""
    monkeypatch.setattr(attention_decode, "SPAN", 16)
    monkeypatch.setattr(attention_decode, "LANES", FEW_LANES)
    monkeypatch.setattr(attention_decode, "_BLOCK_POSITIONS", 16)
    small = attention_prefill.Tile(16, 16, 4, 1)
    monkeypatch.setattr(attention_prefill, "tile", lambda arch, dim: small)


@dataclass(frozen=True)
class Case:
    """Sequences (length, context) over shuffled pages; what no sequence owns is NaN."""

    q: Tensor
    keys: Tensor
    values: Tensor
    gate: Tensor
    sequences: tuple[SequenceSlice, ...]

    @property
    def scale(self) -> float:
        return float(self.q.shape[2] ** -0.5)


def case(
    chunks: list[tuple[int, int]],
    heads: int = 4,
    kv_heads: int = 2,
    dim: int = 16,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
    seed: int = 0,
) -> Case:
    random = torch.Generator().manual_seed(seed)
    needed = [-(-(length + context) // PAGE) for length, context in chunks]
    pages = sum(needed) + 3
    # As KvPages lays them: a layer's keys and values among those of others.
    storage = torch.full((pages, 3, 2, PAGE, kv_heads, dim), torch.nan)
    order = torch.randperm(pages, generator=random)
    sequences = []
    row = used = 0
    for (length, context), count in zip(chunks, needed, strict=True):
        own = order[used : used + count]
        for position in range(length + context):
            part = storage[own[position // PAGE], 1, :, position % PAGE]
            part.copy_(torch.randn(part.shape, generator=random))
        sequences.append(SequenceSlice(row, length, context, own.to(device), 0))
        row, used = row + length, used + count
    # Query and gate share rows, as q_proj gives them.
    both = torch.randn((row, heads, 2 * dim), generator=random).to(device, dtype)
    q, gate = both.chunk(2, dim=-1)
    storage = storage.to(device, dtype)
    return Case(q, storage[:, 1, 0], storage[:, 1, 1], gate, tuple(sequences))


def expected(case: Case, gated: bool = False) -> Tensor:
    out = torch.zeros(case.q.shape, dtype=torch.float64)
    group = case.q.shape[1] // case.keys.shape[2]
    for seq in case.sequences:
        keys = case.keys[seq.pages].flatten(0, 1).double().cpu()
        values = case.values[seq.pages].flatten(0, 1).double().cpu()
        for row in range(seq.length):
            seen = seq.context + row + 1
            for head in range(case.q.shape[1]):
                query = case.q[seq.start + row, head].double().cpu()
                weights = (keys[:seen, head // group] @ query * case.scale).softmax(0)
                out[seq.start + row, head] = weights @ values[:seen, head // group]
    return out * case.gate.double().cpu().sigmoid() if gated else out


def close(got: Tensor, wanted: Tensor, tolerance: float = 1e-5) -> bool:
    assert not got.isnan().any()
    return bool((got.double().cpu() - wanted).norm() <= tolerance * wanted.norm())


SHAPES = [
    # heads, kv_heads, dim
    (4, 2, 16),
    (9, 3, 64),
    (8, 1, 24),
    (2, 2, 256),
]


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
def test_attention_of_single_tokens_and_chunks_equals_its_definition(
    heads: int, kv_heads: int, dim: int, device: torch.device
) -> None:
    made = case([(1, 40), (18, 5), (1, 0), (3, 0)], heads, kv_heads, dim, device=device)
    got = paged_attention(made.q, made.keys, made.values, made.sequences, made.scale)
    assert close(got, expected(made))


@pytest.mark.parametrize("context", [0, 1, 15, 16, 17, 63, 64, 65, 150])
def test_a_single_token_attends_over_any_context(context: int, device: torch.device) -> None:
    made = case([(1, context)], device=device, seed=context)
    tables = attention_tables(made.q, made.sequences, made.q.shape[2])
    got = attend(made.q, made.keys, made.values, tables, made.scale, made.gate)
    assert close(got, expected(made, gated=True))


@pytest.mark.parametrize(("length", "context"), [(2, 0), (16, 16), (17, 0), (33, 7), (2, 70)])
def test_a_chunk_attends_over_any_context(length: int, context: int, device: torch.device) -> None:
    made = case([(length, context)], device=device, seed=length)
    tables = attention_tables(made.q, made.sequences, made.q.shape[2])
    got = attend(made.q, made.keys, made.values, tables, made.scale, made.gate)
    assert close(got, expected(made, gated=True))


def test_rounded_keys_and_values_are_multiplied_in_float32_sums(device: torch.device) -> None:
    made = case([(1, 30), (6, 12)], dtype=torch.bfloat16, device=device)
    got = paged_attention(made.q, made.keys, made.values, made.sequences, made.scale)
    assert got.dtype == torch.bfloat16
    assert close(got, expected(made), 8e-3)


def test_an_empty_row_of_a_captured_batch_gives_zeros(device: torch.device) -> None:
    made = case([(1, 20), (1, 3)], device=device)
    table = attention_tables(made.q, made.sequences, made.q.shape[2]).pages
    lengths = torch.tensor([21, 0], dtype=torch.int32, device=device)
    poison = torch.full_like(table[1:], 10**6)
    got = decode_attention(
        *(made.q, made.keys, made.values, torch.cat([table[:1], poison]), lengths),
        *(made.scale, made.gate),
    )
    assert close(got[:1], expected(made, gated=True)[:1])
    assert torch.equal(got[1], torch.zeros_like(got[1]))


def test_bits_depend_on_neither_neighbours_nor_the_room_for_pages(device: torch.device) -> None:
    made = case([(1, 40), (1, 100), (18, 5), (1, 7), (2, 9)], device=device)
    together = paged_attention(made.q, made.keys, made.values, made.sequences, made.scale)
    for seq in made.sequences:
        rows = slice(seq.start, seq.start + seq.length)
        more = torch.cat([seq.pages, torch.zeros(9, dtype=torch.int64, device=device)])
        alone = SequenceSlice(0, seq.length, seq.context, more, 0)
        got = paged_attention(made.q[rows], made.keys, made.values, (alone,), made.scale)
        assert torch.equal(got, together[rows])


def test_bits_of_a_chunk_do_not_depend_on_where_it_was_cut(device: torch.device) -> None:
    made = case([(37, 6)], heads=2, kv_heads=1, device=device)
    (seq,) = made.sequences
    whole = paged_attention(made.q, made.keys, made.values, made.sequences, made.scale)
    for cut in (10, 35):
        parts = (
            SequenceSlice(0, cut, seq.context, seq.pages, 0),
            SequenceSlice(cut, seq.length - cut, seq.context + cut, seq.pages, 0),
        )
        for part in parts:
            rows = slice(part.start, part.start + part.length)
            alone = SequenceSlice(0, part.length, part.context, part.pages, 0)
            got = paged_attention(made.q[rows], made.keys, made.values, (alone,), made.scale)
            assert torch.equal(got, whole[rows])


def test_tiles_cover_every_row_and_begin_with_the_longest() -> None:
    tiles = attention_prefill.prefill_tiles([(40, 0), (1, 100), (16, 8)], 16)
    assert tiles == [(1, 0), (0, 32), (0, 16), (2, 0), (0, 0)]


def test_pages_that_do_not_suit_the_queries_are_refused(device: torch.device) -> None:
    made = case([(1, 3)], heads=4, kv_heads=2, device=device)
    with pytest.raises(ValueError, match="queries"):
        paged_attention(made.q[:, :3], made.keys, made.values, made.sequences, 1.0)
    with pytest.raises(ValueError, match="side by side"):
        apart = made.keys.transpose(1, 2).contiguous().transpose(1, 2)
        paged_attention(made.q, apart, apart, made.sequences, 1.0)
