"""Pages of keys and values, who holds them, and rows of recurrent state."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.context.allocator import PageAllocator
from engine.context.batch import Batch, SequenceSlice
from engine.context.kv import KvPages
from engine.context.states import StatePool
from engine.errors import OutOfMemory
from engine.kernels.attention import rotate_and_store
from engine.memory.arena import Arena
from engine.models.spec import AttentionSpec, GatedDeltaSpec, LayerSpec, ModelSpec, RopeSpec
from tests.properties import examples

SPEC = ModelSpec(
    family="test",
    vocab_size=10,
    hidden=8,
    layers=(
        LayerSpec("gated_delta", "dense"),
        LayerSpec("attention", "dense"),
        LayerSpec("gated_delta", "dense"),
        LayerSpec("attention", "dense"),
    ),
    attention=AttentionSpec(heads=4, kv_heads=2, head_dim=8, rope=RopeSpec(1e4, 8)),
    norm_eps=1e-6,
    context_tokens=100,
    gated_delta=GatedDeltaSpec(key_heads=1, value_heads=3, key_dim=2, value_dim=5, conv_kernel=4),
)


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=30))
def test_what_is_counted_is_what_is_held(steps: list[tuple[bool, int]]) -> None:
    allocator = PageAllocator(20)
    held: list[list[int]] = []
    for take, number in steps:
        if take and number <= allocator.free_pages:
            held.append(allocator.allocate(number))
        elif take:
            with pytest.raises(
                OutOfMemory, match=f"{number} pages .* {allocator.free_pages} of 20"
            ):
                allocator.allocate(number)
        elif held:
            allocator.free(held.pop(number % len(held)))
        pages = [page for group in held for page in group]
        assert len(set(pages)) == len(pages) == 20 - allocator.free_pages


@pytest.mark.parametrize("wrong", [[0, 0], [3], [-1], [99], [0, 3]])
def test_freeing_what_is_not_held_is_an_error_and_frees_nothing(wrong: list[int]) -> None:
    allocator = PageAllocator(4)
    assert allocator.allocate(2) == [0, 1]
    with pytest.raises(ValueError, match="not held"):
        allocator.free(wrong)
    assert allocator.free_pages == 2
    allocator.free([1, 0])
    with pytest.raises(ValueError, match="page 1 is not held"):
        allocator.free([1])


def test_an_allocator_grows_and_shrinks_behind_its_pages() -> None:
    allocator = PageAllocator(4)
    allocator.allocate(2)
    allocator.resize(6)
    assert (allocator.free_pages, allocator.allocate(4)) == (4, [2, 3, 4, 5])
    with pytest.raises(ValueError, match="page 2 is in use"):
        allocator.resize(2)
    allocator.free([2, 3, 4, 5])
    allocator.resize(2)
    assert (allocator.pages, allocator.free_pages) == (2, 0)


def batch_of(*sequences: tuple[int, int, list[int]]) -> Batch:
    """Sequences of (context, length, pages)."""
    slices, positions, start = [], [], 0
    for context, length, pages in sequences:
        slices.append(SequenceSlice(start, length, context, torch.tensor(pages), 0))
        positions += range(context, context + length)
        start += length
    tokens = torch.zeros(start, dtype=torch.int64)
    return Batch(tokens, torch.tensor(positions), tuple(slices), torch.tensor([start - 1]))


def write(kv: KvPages, layer: int, batch: Batch, k: Tensor, v: Tensor) -> None:
    """As a layer without rotation would."""
    still = torch.zeros(len(k), 0)
    rotate_and_store(k, k, v, still, still, *kv.layer(layer), kv.slots(batch))


def test_pages_give_back_what_was_written() -> None:
    kv = KvPages(SPEC, 6, page_tokens=4)
    assert kv.nbytes == 6 * 2 * 2 * 4 * 2 * 8 * 4
    batch = batch_of((0, 6, [5, 2]), (3, 2, [0, 4]))
    k, v = torch.randn(8, 2, 8), torch.randn(8, 2, 8)
    other = torch.randn(8, 2, 8)
    write(kv, 1, batch, k, v)
    write(kv, 3, batch, other, other)
    keys, values = kv.read(1, torch.tensor([5, 2]), 6)
    assert torch.equal(keys, k[:6])
    assert torch.equal(values, v[:6])
    keys, values = kv.read(1, torch.tensor([0, 4]), 5)
    assert torch.equal(keys[3:], k[6:])
    assert torch.equal(kv.read(3, torch.tensor([0, 4]), 5)[1][3:], other[6:])


def test_pages_keep_what_they_hold_when_the_pool_changes_size() -> None:
    arena = Arena.reserve(10 * KvPages(SPEC, 0, 4).page_bytes)
    kv = KvPages(SPEC, 3, page_tokens=4, arena=arena)
    batch = batch_of((0, 4, [1]))
    k = torch.randn(4, 2, 8)
    write(kv, 3, batch, k, k)
    kv.resize(10)
    assert torch.equal(kv.read(3, torch.tensor([1]), 4)[0], k)
    kv.resize(2)
    assert arena.committed == kv.nbytes
    assert torch.equal(kv.read(3, torch.tensor([1]), 4)[0], k)
    with pytest.raises(OutOfMemory):
        kv.resize(11)
    assert kv.pages == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_rows_are_apart(dtype: torch.dtype) -> None:
    pool = StatePool(SPEC, 3, dtype=dtype)
    channels = 2 * 2 + 3 * 5
    conv, recurrent = pool.layer(2)
    assert conv.shape == (3, channels, 3)
    assert recurrent.shape == (3, 3, 2, 5)
    assert (conv.dtype, recurrent.dtype) == (dtype, torch.float32)
    for row in range(3):
        for layer in SPEC.recurrent_layers:
            conv, recurrent = pool.layer(layer)
            conv[row], recurrent[row] = row + 1, row + 1
    pool.reset(1)
    kept = pool.snapshot(2)
    pool.restore(2, pool.snapshot(0))
    for layer in SPEC.recurrent_layers:
        conv, recurrent = pool.layer(layer)
        assert conv[:, 0, 0].tolist() == recurrent[:, 0, 0, 0].tolist() == [1, 0, 1]
    pool.restore(1, kept)
    assert pool.layer(0)[1][1].unique().tolist() == [3]
    assert pool.nbytes == 3 * pool.row_bytes == 3 * kept.nbytes
    with pytest.raises(IndexError):
        pool.reset(3)


def test_a_model_without_recurrent_layers_has_no_states(tmp_path: Path) -> None:
    dense = ModelSpec("test", 1, 8, (LayerSpec("attention", "dense"),), SPEC.attention, 1e-6, 10)
    with pytest.raises(ValueError, match="no recurrent layers"):
        StatePool(dense, 1)
