"""The sweep over thread counts, and pages on memory nodes."""

from __future__ import annotations

import ctypes
import mmap
import sys

import pytest

from engine.native.library import Library
from engine.native.numa import interleave, keep_on
from engine.native.sweep import (
    counts_to_try,
    placements,
    smallest_near_best,
    sweep_rates,
    sweep_reading,
)
from engine.native.topology import Core, Topology, topology


def test_the_smallest_count_near_the_best_wins() -> None:
    assert smallest_near_best({1: 10.0, 2: 19.0, 4: 30.1, 8: 30.6, 16: 30.3}) == 4
    assert smallest_near_best({1: 10.0, 2: 9.0}) == 1
    assert smallest_near_best({3: 5.0}) == 3


@pytest.mark.parametrize("cores", [1, 2, 8, 9, 16, 24, 128])
def test_counts_to_try(cores: int) -> None:
    counts = counts_to_try(cores)
    assert counts == sorted(set(counts))
    assert counts[0] == 1 and counts[-1] == cores
    assert len(counts) <= 11


def test_a_sweep_measures_every_count() -> None:
    used: list[int] = []
    rates = sweep_rates(lambda: None, 1000, used.append, [1, 3])
    assert set(rates) == {1, 3}
    assert all(rate > 0 for rate in rates.values())
    assert used == [1, 3] * 3


def test_several_nodes_have_several_placements() -> None:
    cores = tuple(Core(0, node, cpu) for node in (0, 1) for cpu in range(node * 4, node * 4 + 4))
    one, two = placements(Topology(cores[:4])), placements(Topology(cores))
    assert [each.name for each in one] == ["interleaved"]
    assert [(each.name, len(each.cores)) for each in two] == [
        *(("interleaved", 8), ("node 0", 4), ("node 1", 4))
    ]


def test_reading_is_swept_on_this_machine(native: Library) -> None:
    found = sweep_reading(native, topology(), 8 << 20)
    native.set_cpus([])
    assert found[0].threads in counts_to_try(len(found[0].placement.cores))


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's memory policies")
def test_pages_stay_readable_on_a_node() -> None:
    with mmap.mmap(-1, 4 * mmap.PAGESIZE) as memory:
        memory[:5] = b"bytes"
        place = ctypes.c_char.from_buffer(memory)
        address = ctypes.addressof(place)
        interleave(address, 4 * mmap.PAGESIZE, [0])
        try:
            keep_on(address, 4 * mmap.PAGESIZE, 0)
        except PermissionError:
            pytest.skip("this machine forbids mbind")
        with pytest.raises(OSError, match="nodes"):
            keep_on(address, 4 * mmap.PAGESIZE, 1000)
        with pytest.raises(ValueError, match="begin of a page"):
            keep_on(address + 8, 10, 0)
        assert memory[:5] == b"bytes"
        del place
