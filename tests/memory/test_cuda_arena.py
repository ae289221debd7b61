"""Virtual memory on a GPU: addresses stay, what is kept stays, what is released is really free.

Sizes of handles and a missing driver need no GPU.
"""

from __future__ import annotations

import gc
import random

import pytest
import torch

from engine.errors import DeviceUnavailable, DriverError, OutOfMemory
from engine.memory.arena import Arena
from engine.memory.cuda_arena import HANDLE_BYTES, CudaArena, handle_bytes
from engine.memory.cuda_driver import driver

MIB = 1 << 20
SLACK = 16 * MIB
"""Of the driver's own."""


@pytest.mark.parametrize("reserved", [0, 1, 5 * MIB, 200 * MIB, 2 << 30, 100 << 30])
def test_rounding_up_to_handles_takes_a_64th_or_one_granule(reserved: int) -> None:
    size = handle_bytes(reserved, 2 * MIB)
    assert size % (2 * MIB) == 0
    assert size == 2 * MIB or size - 2 * MIB < reserved / 64
    assert size <= HANDLE_BYTES


def test_no_handle_is_smaller_than_the_driver_s_granule() -> None:
    assert handle_bytes(100 << 30, 64 * MIB) == 64 * MIB
    assert handle_bytes(100 << 30, 24 * MIB) == 48 * MIB


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a driver")
def test_a_missing_driver_is_named() -> None:
    with pytest.raises(DeviceUnavailable, match="NVIDIA's driver cannot be used"):
        driver(0)


@pytest.fixture
def cuda() -> torch.device:
    device = torch.device("cuda", torch.cuda.current_device())
    # A kernel's first call loads its code into the GPU's memory.
    torch.ones(MIB, dtype=torch.uint8, device=device).zero_()
    return device


def free_bytes(device: torch.device) -> int:
    gc.collect()
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]


def taken(before: int, device: torch.device) -> object:
    """Bytes that are in use since then; equal to others within SLACK."""
    return pytest.approx(before - free_bytes(device), abs=SLACK)


@pytest.mark.gpu
def test_it_grows_and_shrinks_and_the_driver_sees_it(cuda: torch.device) -> None:
    arena = Arena.reserve(4 << 30, cuda)
    assert isinstance(arena, CudaArena)
    assert (arena.backed, arena.granule) == (0, HANDLE_BYTES)
    before = free_bytes(cuda)
    arena.commit(1 << 30)
    assert taken(before, cuda) == 1 << 30
    arena.commit(1)
    assert (arena.committed, arena.backed) == ((1 << 30) + 1, (1 << 30) + HANDLE_BYTES)
    assert taken(before, cuda) == arena.backed
    arena.release((1 << 30) - MIB)
    assert (arena.committed, arena.backed) == (MIB + 1, HANDLE_BYTES)
    assert taken(before, cuda) == HANDLE_BYTES
    arena.resize(0)
    assert arena.backed == 0 and taken(before, cuda) == 0
    assert arena.view(0, (0, 7), torch.float32).shape == (0, 7)


@pytest.mark.gpu
def test_it_ends_with_its_last_view(cuda: torch.device) -> None:
    before = free_bytes(cuda)
    arena = CudaArena(256 * MIB, cuda)
    arena.commit(256 * MIB)
    view = arena.view(255 * MIB, (MIB,), torch.uint8)
    view.fill_(9)
    del arena
    gc.collect()
    assert int(view[-1]) == 9
    assert taken(before, cuda) == 256 * MIB
    del view
    gc.collect()
    assert taken(before, cuda) == 0


@pytest.mark.gpu
def test_a_thousand_resizes_keep_the_address_and_what_is_kept(cuda: torch.device) -> None:
    chance = random.Random(7)
    before = free_bytes(cuda)
    most = 96 * MIB
    arena = CudaArena(most, cuda)
    assert arena.granule == 2 * MIB
    kept = torch.zeros(most // MIB, dtype=torch.int64)
    arena.commit(MIB)
    address = arena.view(0, (MIB,), torch.uint8).data_ptr()
    committed = 1
    for step in range(1000):
        wanted = chance.randint(0, most // MIB)
        arena.resize(wanted * MIB)
        assert (arena.committed, arena.backed) == (wanted * MIB, -(-wanted // 2) * 2 * MIB)
        words = arena.view(0, (wanted, MIB // 8), torch.int64)
        assert wanted == 0 or words.data_ptr() == address
        both = min(wanted, committed)
        assert torch.equal(words[:both, -1].cpu(), kept[:both])
        # Every mebibyte is marked at its end, so that all handles are written to.
        words[:, -1] = step
        kept[:wanted] = step
        committed = wanted
    del arena, words
    gc.collect()
    assert taken(before, cuda) == 0


@pytest.mark.gpu
def test_new_memory_is_zero(cuda: torch.device) -> None:
    for _ in range(2):
        arena = CudaArena(64 * MIB, cuda)
        arena.commit(64 * MIB)
        view = arena.view(0, (8 * MIB,), torch.int64)
        assert int(view.abs().max()) == 0
        view.fill_(-1)
        del view, arena
        gc.collect()


@pytest.mark.gpu
def test_a_captured_graph_stays_right_while_memory_comes_and_goes(cuda: torch.device) -> None:
    arena = CudaArena(1 << 30, cuda)
    arena.commit(1 << 30)
    rows = 1024
    table = arena.view(0, (rows, 1 << 18), torch.float32)
    table[:, 0] = torch.arange(rows, device=cuda, dtype=torch.float32)
    chosen = torch.zeros(4, dtype=torch.int64, device=cuda)
    out = torch.zeros(4, device=cuda)

    def step() -> None:
        torch.index_select(table[:, 0], 0, chosen, out=out)
        out.mul_(2)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay(wanted: list[int]) -> list[float]:
        chosen.copy_(torch.tensor(wanted))
        graph.replay()
        return out.tolist()

    assert replay([0, 5, 500, 1023]) == [0, 10, 1000, 2046]
    for megabytes in (512, 32, 700, 1024):
        before = free_bytes(cuda)
        change = arena.committed - megabytes * MIB
        arena.resize(megabytes * MIB)
        assert free_bytes(cuda) - before == pytest.approx(change, abs=arena.granule)
        assert replay([0, 1, 30, 31]) == [0, 2, 60, 62]
    whole = arena.view(0, (rows, 1 << 18), torch.float32)
    whole[700:, 0] = 3
    assert replay([31, 700, 1000, 1023]) == [62, 6, 6, 6]


@pytest.mark.gpu
def test_memory_that_is_short_is_told_and_nothing_changes(cuda: torch.device) -> None:
    total = torch.cuda.mem_get_info(cuda)[1]
    arena = CudaArena(2 * total, cuda)
    arena.commit(64 * MIB)
    arena.view(0, (64 * MIB,), torch.uint8).fill_(5)
    before = free_bytes(cuda)
    with pytest.raises(OutOfMemory, match=r"GB more are wanted on cuda:\d.*CUDA_ERROR_OUT_OF_MEM"):
        arena.commit(total)
    assert (arena.committed, arena.backed) == (64 * MIB, 64 * MIB)
    assert taken(before, cuda) == 0
    assert bool((arena.view(0, (64 * MIB,), torch.uint8) == 5).all())
    with pytest.raises(OutOfMemory, match="GB are wanted of an arena of"):
        arena.commit(2 * total)


@pytest.mark.gpu
def test_memory_that_torch_holds_for_itself_can_be_had(cuda: torch.device) -> None:
    free = free_bytes(cuda)
    held = torch.empty(free // 4 * 3, dtype=torch.uint8, device=cuda)
    del held
    arena = CudaArena(free, cuda)
    arena.commit(free // 2)
    assert arena.backed >= free // 2


@pytest.mark.gpu
def test_the_driver_s_refusals_have_its_own_words(cuda: torch.device) -> None:
    with pytest.raises(DriverError, match=r"cuMemMap: CUDA_ERROR_INVALID_VALUE \(.+\)"):
        driver(cuda.index).map(0, 2 * MIB, 0)
