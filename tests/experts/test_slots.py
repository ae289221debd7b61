"""Slots hold what was copied into them, in as few copies as the order allows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import OutOfMemory
from engine.experts.runtime import ExpertRuntime
from engine.experts.slots import SlotPool, runs
from engine.experts.store import plan_layers
from engine.kernels.gather import gather_blobs
from engine.memory.device import resolve_device
from engine.options import DeviceName
from tests.experts.checkpoint_experts import random_experts
from tests.properties import examples

STRIDE = 4096


def test_what_follows_in_both_is_one_copy() -> None:
    assert list(runs([])) == []
    assert list(runs([(4, 2)])) == [(4, 2, 1)]
    assert list(runs([(4, 2), (5, 3), (6, 4), (8, 5), (9, 7)])) == [(4, 2, 3), (8, 5, 1), (9, 7, 1)]
    assert list(runs([(1, 1), (0, 0)])) == [(1, 1, 1), (0, 0, 1)]


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12))
def test_runs_are_the_fills(fills: list[tuple[int, int]]) -> None:
    said = [(expert + n, slot + n) for expert, slot, count in runs(fills) for n in range(count)]
    assert said == fills


@pytest.mark.parametrize("name", ["sim", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_pool_is_filled_and_resized(name: DeviceName) -> None:
    pool = SlotPool(resolve_device(name), STRIDE, 3, 12)
    bank = torch.randint(256, (8, STRIDE), dtype=torch.uint8)
    pool.fill(bank, [(2, 0), (3, 1), (7, 2)])
    address = pool.bank.data_ptr()
    assert torch.equal(pool.bank.cpu(), bank[[2, 3, 7]])
    pool.resize(12)
    pool.fill(bank, [(0, 11)])
    assert torch.equal(pool.bank[[0, 2, 11]].cpu(), bank[[2, 7, 0]])
    pool.resize(2)
    assert torch.equal(pool.bank.cpu(), bank[[2, 3]])
    assert pool.bank.data_ptr() == address
    with pytest.raises(OutOfMemory):
        pool.resize(13)


@pytest.mark.parametrize("name", ["sim", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_store_s_banks_are_what_gather_reads(name: DeviceName) -> None:
    experts = random_experts(["nvfp4", "float32", "nvfp4"], experts=4, hidden=64, inner=32)
    device = resolve_device(name)
    runtime = ExpertRuntime.load(experts, plan_layers(experts, [0, 1, 2]), device)
    banks = runtime.store.banks([0, 2], device.torch)
    pool = runtime.pools[0][0].bank
    assert bool((banks.addresses != 0).all())
    fills = torch.tensor([[1, 3, 5], [0, 1, 2]], dtype=torch.int32, device=device.torch)
    gather_blobs(pool, banks, fills, torch.tensor([2], dtype=torch.int32, device=device.torch))
    assert torch.equal(pool[5].cpu(), runtime.store.bank(2)[3])
    assert torch.equal(pool[2].cpu(), runtime.store.bank(0)[1])
    runtime.close()
