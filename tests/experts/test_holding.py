"""Layers are pinned as they are filled, up to what the system allows, and unpinned at the end."""

from __future__ import annotations

import gc
import logging
import threading
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import Tensor

from engine.errors import DeviceFault, DriverError, OutOfMemory
from engine.experts.holding import Hold, Holding
from engine.experts.runtime import ExpertRuntime
from engine.experts.store import ExpertStore, plan_layers
from engine.memory.arena import HostArena
from engine.memory.cuda_driver import driver
from engine.memory.device import resolve_device
from engine.memory.pinned import Pinned
from tests.experts.checkpoint_experts import random_experts

MIB = 1 << 20


@dataclass
class System:
    """Allows so many bytes to be pinned at once."""

    allows: int
    pinned: int = 0
    tried: int = 0

    def pin(self, memory: Tensor) -> Registered:
        self.tried += 1
        assert threading.current_thread() is not threading.main_thread()
        assert int(memory[0, 0]) == 7, "pinned before it was filled"
        if self.pinned + memory.nbytes > self.allows:
            raise OutOfMemory("cuMemHostRegister: no more")
        self.pinned += memory.nbytes
        return Registered(self, memory.nbytes)


@dataclass
class Registered:
    system: System
    nbytes: int
    device_address: int = 0x7000

    def close(self) -> None:
        self.system.pinned -= self.nbytes


def filled(holding: Holding, layers: int) -> None:
    for layer in range(layers):
        arena = HostArena(MIB)
        arena.commit(MIB)
        bank = arena.view(0, (4, MIB // 4), torch.uint8)
        bank.fill_(7)
        holding.add(layer, arena, bank)


def test_all_layers_are_pinned_where_the_system_allows_it() -> None:
    system = System(allows=8 * MIB)
    with Holding(system.pin) as holding:
        filled(holding, 3)
        holding.finish()
    assert [holding.hold(layer) for layer in range(3)] == [Hold.PINNED] * 3
    assert holding.device_address(2) == 0x7000
    assert (holding.pinned_bytes, holding.locked_bytes) == (3 * MIB, 0)
    holding.close()
    holding.close()
    assert (system.pinned, holding.hold(0), holding.device_address(0)) == (0, Hold.PAGEABLE, 0)


def test_a_limit_is_told_and_leaves_room_for_buffers(caplog: pytest.LogCaptureFixture) -> None:
    system = System(allows=5 * MIB)
    with Holding(system.pin, spare=2 * MIB) as holding:
        filled(holding, 8)
        holding.finish()
    holds = [holding.hold(layer) for layer in range(8)]
    assert holds == [Hold.PINNED] * 3 + [Hold.PAGEABLE] * 5
    assert (system.pinned, system.tried) == (3 * MIB, 6)
    assert "0.00 of the experts' 0.01 GB are pinned" in caplog.text
    assert "cuMemHostRegister: no more" in caplog.text


def test_what_cannot_be_pinned_is_locked_if_that_is_asked_for() -> None:
    system = System(allows=2 * MIB)
    with Holding(system.pin, lock=True, spare=MIB) as holding:
        filled(holding, 3)
        holding.finish()
    if holding.locked_bytes == 0:
        pytest.skip("this user may lock nothing")
    assert [holding.hold(n) for n in range(3)] == [Hold.PINNED, Hold.LOCKED, Hold.LOCKED]
    assert holding.locked_bytes == 2 * MIB


def test_after_an_error_nothing_stays_pinned() -> None:
    system = System(allows=8 * MIB)
    with pytest.raises(KeyError), Holding(system.pin) as holding:
        filled(holding, 2)
        raise KeyError
    assert system.pinned == 0


def test_a_broken_gpu_ends_the_load() -> None:
    def broken(memory: Tensor) -> Pinned:
        raise DeviceFault("cuMemHostRegister: gone")

    with pytest.raises(DeviceFault, match="gone"), Holding(broken) as holding:
        filled(holding, 1)
        holding.finish()


def test_without_a_gpu_nothing_is_pinned() -> None:
    experts = random_experts(["nvfp4"] * 2, experts=2, hidden=64, inner=32)
    store = ExpertStore.load(experts, plan_layers(experts, [0, 1]))
    assert (store.hold(0), store.pinned_bytes, store.locked_bytes) == (Hold.PAGEABLE, 0, 0)
    store.close()


@pytest.fixture
def cuda() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


@pytest.mark.gpu
def test_the_store_of_a_gpu_is_pinned_and_its_end_unpins_it(
    cuda: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    experts = random_experts(["nvfp4", "float32"], experts=3, hidden=64, inner=32)
    plans = plan_layers(experts, [0, 1])
    runtime = ExpertRuntime.load(experts, plans, resolve_device("cuda"))
    store = runtime.store
    assert [store.hold(layer) for layer in (0, 1)] == [Hold.PINNED, Hold.PINNED]
    assert runtime.pinned_bytes == store.nbytes
    assert "GB are pinned" in caplog.text
    assert all(store.bank(layer).is_pinned() for layer in (0, 1))
    bank = store.bank(0)
    assert torch.equal(bank.to(cuda).cpu(), bank)
    runtime.close()
    assert not bank.is_pinned()
    again = Pinned(bank, cuda)
    del runtime, store, again
    gc.collect()
    assert not bank.is_pinned()


@pytest.mark.gpu
def test_the_driver_names_why_it_pins_nothing(cuda: torch.device) -> None:
    arena = HostArena(4 * MIB)
    arena.commit(4 * MIB)
    memory = arena.view(0, (4 * MIB,), torch.uint8)
    memory.fill_(1)
    pinned = Pinned(memory, cuda)
    assert pinned.device_address != 0
    with pytest.raises(DriverError, match="CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"):
        Pinned(memory, cuda)
    pinned.close()
    pinned.close()
    with pytest.raises(DriverError, match="CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"):
        driver(cuda.index).unregister(memory.data_ptr())


@pytest.mark.gpu
def test_what_cannot_be_pinned_is_copied_all_the_same(
    cuda: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    experts = random_experts(["float32"] * 3, experts=3, hidden=64, inner=32)
    store = ExpertStore.load(experts, plan_layers(experts, [0, 1, 2]))
    in_the_way = Pinned(store.bank(1), cuda)
    with Holding(partial(Pinned, device=cuda), spare=0) as holding:
        for layer in range(3):
            holding.add(layer, store._layers[layer].arena, store.bank(layer))
        holding.finish()
    assert [holding.hold(n) for n in range(3)] == [Hold.PINNED, Hold.PAGEABLE, Hold.PAGEABLE]
    assert "cuMemHostRegister: CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED" in caplog.text
    in_the_way.close()
    for layer in range(3):
        bank = store.bank(layer)
        assert torch.equal(bank.to(cuda).cpu(), bank)
    holding.close()
