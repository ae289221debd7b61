"""Arenas: accounting against a plain integer, bounds, and pages that really go back."""

from __future__ import annotations

import gc
import sys

import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import OutOfMemory
from engine.memory.arena import Arena, HostArena, TorchArena
from engine.memory.host_pages import PAGE_BYTES
from tests.properties import examples

MIB = 1 << 20


def resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def arenas(nbytes: int) -> list[Arena]:
    return [HostArena(nbytes), TorchArena(nbytes, torch.device("cpu"))]


def test_reserve_picks_the_backing_by_device() -> None:
    assert isinstance(Arena.reserve(10), HostArena)
    assert isinstance(Arena.reserve(10, torch.device("cpu")), HostArena)


def test_a_reservation_costs_nothing_until_it_is_touched() -> None:
    before = resident_bytes()
    arena = HostArena(256 * MIB)
    arena.commit(256 * MIB)
    assert resident_bytes() - before < 32 * MIB


@pytest.mark.skipif(sys.platform == "win32", reason="counts the working set of POSIX")
def test_release_returns_pages_to_the_system() -> None:
    arena = HostArena(64 * MIB)
    arena.commit(64 * MIB)
    arena.view(0, (64 * MIB,), torch.uint8).fill_(7)
    full = resident_bytes()
    arena.release(48 * MIB)
    assert full - resident_bytes() > 44 * MIB
    assert bool((arena.view(0, (16 * MIB,), torch.uint8) == 7).all())


@pytest.mark.skipif(sys.platform == "win32", reason="counts the working set of POSIX")
def test_an_arena_ends_with_its_last_view() -> None:
    arena = HostArena(64 * MIB)
    arena.commit(64 * MIB)
    view = arena.view(0, (64 * MIB,), torch.uint8)
    view.fill_(1)
    full = resident_bytes()
    del arena
    gc.collect()
    assert int(view[-1]) == 1
    del view
    gc.collect()
    assert full - resident_bytes() > 60 * MIB


@pytest.mark.parametrize("kind", [0, 1])
def test_committed_memory_starts_as_zeros(kind: int) -> None:
    arena = arenas(3 * PAGE_BYTES)[kind]
    arena.commit(3 * PAGE_BYTES)
    assert int(arena.view(0, (3 * PAGE_BYTES,), torch.uint8).sum()) == 0


def test_backed_counts_whole_granules() -> None:
    arena = HostArena(10 * PAGE_BYTES, granule=2 * PAGE_BYTES)
    arena.commit(1)
    assert (arena.committed, arena.backed) == (1, 2 * PAGE_BYTES)
    arena.commit(2 * PAGE_BYTES)
    assert (arena.committed, arena.backed) == (2 * PAGE_BYTES + 1, 4 * PAGE_BYTES)
    arena.release(1)
    assert (arena.committed, arena.backed) == (2 * PAGE_BYTES, 2 * PAGE_BYTES)


def test_a_torch_arena_says_that_it_gives_nothing_back() -> None:
    arena = TorchArena(4096, torch.device("cpu"))
    assert arena.backed == 0
    arena.commit(1024)
    arena.release(1024)
    assert (arena.committed, arena.backed) == (0, 4096)


@pytest.mark.parametrize("kind", [0, 1])
def test_views_stay_inside_what_is_committed(kind: int) -> None:
    arena = arenas(PAGE_BYTES)[kind]
    arena.commit(64)
    assert arena.view(32, (2, 4), torch.float32).shape == (2, 4)
    for offset, shape in [(0, (17,)), (64, (1,)), (-4, (1,)), (0, (-1,))]:
        with pytest.raises(ValueError, match="outside"):
            arena.view(offset, shape, torch.float32)
    with pytest.raises(ValueError, match="multiple"):
        arena.view(2, (1,), torch.float32)
    arena.release(32)
    with pytest.raises(ValueError, match="outside"):
        arena.view(32, (1,), torch.float32)


@pytest.mark.parametrize("kind", [0, 1])
def test_too_much_is_refused_with_both_numbers(kind: int) -> None:
    arena = arenas(2_000_000_000)[kind] if kind == 0 else TorchArena(4096, torch.device("cpu"))
    with pytest.raises(OutOfMemory, match=r"GB are wanted of an arena of"):
        arena.commit(3_000_000_000)
    assert arena.committed == 0
    with pytest.raises(ValueError, match="cannot release"):
        arena.release(1)
    with pytest.raises(ValueError):
        arena.commit(-1)


def test_an_impossible_range_is_refused_by_the_system() -> None:
    with pytest.raises(OutOfMemory, match="refused to"):
        HostArena(1 << 60)


@settings(max_examples=examples(60))
@given(st.lists(st.integers(-3 * PAGE_BYTES, 3 * PAGE_BYTES), max_size=30))
def test_accounting_is_exact_and_kept_bytes_survive(deltas: list[int]) -> None:
    limit = 8 * PAGE_BYTES
    arena = HostArena(limit)
    model = bytearray()
    for step, delta in enumerate(deltas):
        if delta >= 0 and len(model) + delta > limit:
            with pytest.raises(OutOfMemory):
                arena.commit(delta)
        elif delta < 0 and -delta > len(model):
            with pytest.raises(ValueError):
                arena.release(-delta)
        elif delta >= 0:
            arena.commit(delta)
            mark = step % 251 + 1
            arena.view(len(model), (delta,), torch.uint8).fill_(mark)
            model.extend(bytes([mark]) * delta)
        else:
            arena.release(-delta)
            del model[len(model) + delta :]
        assert arena.committed == len(model)
        assert arena.backed == -(-len(model) // PAGE_BYTES) * PAGE_BYTES
        assert bytes(arena.view(0, (len(model),), torch.uint8).tolist()) == bytes(model)
