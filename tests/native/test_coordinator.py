"""The CPU's branch with a thread that plays the device: the test's own, or the sanitizers' program
(doorbell.cpp), which plays many more rounds."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import psutil
import pytest
import torch
from torch import Tensor

from engine.errors import DeviceFault, InvalidRequest, StepPoisoned
from engine.experts.store import ExpertStore, plan_layers
from engine.kernels.linear import linear
from engine.kernels.moe import moe_expert_rows
from engine.native.coordinator import Coordinator, Doorbell, LayerBank, doorbell_shape
from engine.native.library import BFLOAT16, FLOAT32, Library
from tests.experts.checkpoint_experts import random_experts
from tests.experts.checkpoint_experts import store as stored

HIDDEN, INNER, EXPERTS = 96, 64, 5
TOKENS, ROUTES = 6, 3


@dataclass
class Device:
    """Plays the device: its block as tensors, and banks of two layers in two formats."""

    bell: Doorbell
    block: Tensor
    stores: list[ExpertStore]
    layers: list[LayerBank]

    def part(self, offset: int, dtype: torch.dtype, *shape: int) -> Tensor:
        size = torch.Size(shape).numel() * dtype.itemsize
        return self.block[offset : offset + size].view(dtype).view(shape)

    def hand_over(self, x: Tensor, slots: Tensor) -> Tensor:
        """Writes a step into the block; returns its rows there."""
        self.part(self.bell.shape.slots, torch.int64, *slots.shape).copy_(slots)
        self.part(self.bell.shape.x, x.dtype, *x.shape).copy_(x)
        return self.part(self.bell.shape.rows, torch.float32, *slots.shape, x.shape[1])

    def step(self, layer: int, x: Tensor, slots: Tensor) -> Tensor:
        rows = self.hand_over(x, slots).fill_(7.0)
        self.bell.wait(self.bell.ring(layer, *slots.shape), 30)
        return rows

    def directly(self, layer: int, x: Tensor, slots: Tensor) -> Tensor:
        rows = torch.full((*slots.shape, x.shape[1]), 7.0)
        kept = self.stores[layer]
        moe_expert_rows(kept.bank(0), kept.plan(0).spec, x, slots, rows)
        return rows


def make_device(native: Library, x_type: int) -> Device:
    stores = []
    for storage in ("nvfp4", "bfloat16"):
        experts = random_experts(storage, experts=EXPERTS, hidden=HIDDEN, inner=INNER)
        stores.append(ExpertStore.load(experts, plan_layers(experts, [0])))
    layers = [LayerBank(s.plan(0).spec, s.bank(0).data_ptr(), EXPERTS) for s in stores]
    shape = doorbell_shape(native, tokens=TOKENS, routes=ROUTES, hidden=HIDDEN, x_type=x_type)
    block = torch.zeros(shape.bytes, dtype=torch.uint8)
    return Device(Doorbell(native, shape, block.data_ptr()), block, stores, layers)


@pytest.fixture
def device(native: Library) -> Device:
    return make_device(native, FLOAT32)


@pytest.fixture
def coordinator(native: Library, device: Device) -> Iterator[Coordinator]:
    with Coordinator(native, device.bell, device.layers) as opened:
        yield opened


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_answers_equal_direct_calls_to_the_bit(
    native: Library, dtype: torch.dtype, threads: int
) -> None:
    device = make_device(native, BFLOAT16 if dtype == torch.bfloat16 else FLOAT32)
    torch.set_num_threads(threads)
    with Coordinator(native, device.bell, device.layers) as coordinator:
        for number in range(60):
            tokens, routes = 1 + number % TOKENS, 1 + number % ROUTES
            x = torch.randn(tokens, HIDDEN).to(dtype)
            slots = torch.randint(-1, EXPERTS, (tokens, routes))
            slots[0, 0] = number % EXPERTS
            expected = device.directly(number % 2, x, slots)
            assert torch.equal(device.step(number % 2, x, slots), expected)
        assert coordinator.answers == 60
        assert coordinator.busy_seconds > 0


def test_a_step_with_nothing_to_do_does_not_ring(device: Device, coordinator: Coordinator) -> None:
    slots = torch.full((2, ROUTES), -1)
    device.hand_over(torch.randn(2, HIDDEN), slots)
    assert device.bell.ring(0, 2, ROUTES) == 0
    device.bell.wait(0, 0.0)
    assert coordinator.answers == 0


def test_many_rounds_in_order(device: Device, coordinator: Coordinator) -> None:
    x, slots = torch.randn(8, 1, HIDDEN), torch.randint(0, EXPERTS, (8, 1, ROUTES))
    expected = [device.directly(i % 2, x[i], slots[i]) for i in range(8)]
    coordinator.begin_step(600)
    for number in range(10_000):
        i = number % 8
        rows = device.step(i % 2, x[i], slots[i])
        if number % 100 < 8:
            assert torch.equal(rows, expected[i])
    coordinator.end_step()
    assert coordinator.answers == 10_000


def test_a_late_answer_poisons_the_block_and_counts_no_more(
    native: Library, device: Device
) -> None:
    """The real way to be late: the library is busy for another caller."""
    x, slots = torch.randn(1, HIDDEN), torch.zeros((1, 1), dtype=torch.int64)
    weight, many = stored(torch.randn(1500, 1500), "float32"), torch.randn(12_000, 1500)
    coordinator = Coordinator(native, device.bell, device.layers, answer_seconds=0.05)
    busy = threading.Thread(target=linear, args=(many, weight, None))
    busy.start()
    time.sleep(0.1)
    device.hand_over(x, slots)
    began = time.monotonic()
    with pytest.raises(StepPoisoned, match="did not answer in time"):
        device.bell.wait(device.bell.ring(0, 1, 1), 60)
    assert time.monotonic() - began < 30
    assert not coordinator.close(patience=0.0, keep=device)
    busy.join()
    for _ in range(2):
        with pytest.raises(StepPoisoned, match="did not answer in time"):
            device.bell.ring(0, 1, 1)
        with pytest.raises(DeviceFault):
            device.bell.wait(0, 1)


def test_a_step_that_does_not_end_poisons_the_block(
    device: Device, coordinator: Coordinator
) -> None:
    coordinator.begin_step(60)
    coordinator.end_step()
    coordinator.begin_step(0.02)
    with pytest.raises(StepPoisoned, match="step did not end in time"):
        device.bell.wait(1, 60)
    with pytest.raises(StepPoisoned) as error:
        coordinator.end_step()
    assert error.value.record().code == "step_poisoned"


def test_a_device_that_gives_up_poisons_the_block(device: Device, coordinator: Coordinator) -> None:
    with pytest.raises(StepPoisoned, match="device stopped waiting"):
        device.bell.wait(1, 0.01)
    with pytest.raises(StepPoisoned):
        coordinator.end_step()


@pytest.mark.parametrize(
    ("layer", "tokens", "slot", "why"),
    [(0, 1, EXPERTS, "a slot beyond"), (2, 1, 0, "descriptor"), (0, TOKENS + 1, 0, "descriptor")],
)
def test_a_request_that_makes_no_sense_is_refused(
    native: Library,
    device: Device,
    coordinator: Coordinator,
    layer: int,
    tokens: int,
    slot: int,
    why: str,
) -> None:
    """As a device would write it, which nothing in between checks."""
    device.hand_over(torch.randn(1, HIDDEN), torch.full((1, 1), slot))
    ticket = ctypes.c_uint32()
    ring = native.functions.headrace_doorbell_ring
    ring(device.bell.address, layer, tokens, 1, ctypes.byref(ticket))
    with pytest.raises(StepPoisoned, match=why):
        device.bell.wait(ticket.value, 60)


@pytest.mark.parametrize(
    ("layer", "tokens", "routes"),
    [(0, TOKENS + 1, 1), (0, 1, ROUTES + 1), (0, -1, 1), (0, 1, -1), (-1, 1, 1), (0, 1 << 31, 1)],
)
def test_a_step_that_the_block_cannot_hold_is_not_rung(
    device: Device, coordinator: Coordinator, layer: int, tokens: int, routes: int
) -> None:
    x, slots = torch.randn(TOKENS, HIDDEN), torch.zeros((TOKENS, ROUTES), dtype=torch.int64)
    device.hand_over(x, slots)
    with pytest.raises(ValueError, match="the block is for up to 6 and 3"):
        device.bell.ring(layer, tokens, routes)
    assert torch.equal(device.step(0, x, slots), device.directly(0, x, slots))
    assert device.bell.ring(0, 0, ROUTES) == 0


def test_closing_at_any_time_ends_every_wait(native: Library) -> None:
    for round_ in range(20):
        device = make_device(native, FLOAT32)
        x, slots = torch.randn(3, HIDDEN), torch.randint(0, EXPERTS, (3, ROUTES))
        expected = device.directly(0, x, slots)
        coordinator = Coordinator(native, device.bell, device.layers)
        ends: list[str] = []

        def play() -> None:
            try:
                while True:
                    if not torch.equal(device.step(0, x, slots), expected):  # noqa: B023
                        ends.append("a wrong answer")  # noqa: B023
            except StepPoisoned as error:
                ends.append(error.message)  # noqa: B023

        player = threading.Thread(target=play)
        player.start()
        time.sleep(round_ * 0.0007)
        assert coordinator.close()
        assert coordinator.close()
        player.join(30)
        assert not player.is_alive()
        assert ends == ["A step was given up: the CPU's experts have been shut down."]
        with pytest.raises(ValueError, match="closed"):
            coordinator.begin_step(1)


def test_an_idle_coordinator_sleeps(device: Device, coordinator: Coordinator) -> None:
    device.step(0, torch.randn(1, HIDDEN), torch.zeros((1, 1), dtype=torch.int64))
    time.sleep(1.0)
    process = psutil.Process()
    before = sum(process.cpu_times()[:2])
    time.sleep(3.0)
    assert sum(process.cpu_times()[:2]) - before < 0.03


def test_the_header_says_where_the_flags_lie(device: Device, coordinator: Coordinator) -> None:
    """What a GPU's kernel relies on, read with plain loads."""
    word = lambda offset: ctypes.c_uint32.from_address(device.bell.address + offset).value  # noqa: E731
    device.step(1, torch.randn(2, HIDDEN), torch.zeros((2, 3), dtype=torch.int64))
    assert [word(offset) for offset in (0, 4, 8, 12)] == [1, 1, 2, 3]
    assert [word(offset) for offset in (64, 72, 76, 128)] == [1, 1, 0, 0]
    coordinator.close()
    assert [word(offset) for offset in (76, 128)] == [1, 4]


def test_what_does_not_fit_is_refused(native: Library, device: Device) -> None:
    with pytest.raises(InvalidRequest, match="no doorbell"):
        doorbell_shape(native, tokens=0, routes=1, hidden=8)
    wide = doorbell_shape(native, tokens=1, routes=1, hidden=HIDDEN * 2)
    block = torch.zeros(wide.bytes, dtype=torch.uint8)
    with pytest.raises(InvalidRequest, match="do not fit"):
        Coordinator(native, Doorbell(native, wide, block.data_ptr()), device.layers)
    skewed = Doorbell(native, device.bell.shape, device.bell.address + 8)
    with pytest.raises(InvalidRequest, match="do not fit"):
        Coordinator(native, skewed, device.layers)
