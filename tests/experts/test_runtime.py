"""What is resident changes speed and not one bit of the output."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from engine.errors import InvalidRequest, OutOfMemory
from engine.experts.residency import ABSENT
from engine.experts.runtime import ExpertRuntime
from engine.experts.store import plan_layers
from engine.kernels.expert_scores import magnitude
from engine.kernels.residency import live_scores
from engine.memory.device import resolve_device
from engine.options import DeviceName
from tests.experts.checkpoint_experts import RandomExperts, random_experts

EXPERTS, HIDDEN, INNER, WIDTH = 6, 64, 32, 3
STEPS = [1, 1, 2, 24, 1, 9, 1, 1]
"""Tokens of each step: decodes, a prefill chunk, batches."""


def make(
    experts: RandomExperts,
    device: DeviceName = "sim",
    rate: float = 1.0,
    slots: tuple[int, ...] = (),
) -> ExpertRuntime:
    plans = plan_layers(experts, range(len(experts.layers)))
    return ExpertRuntime.load(
        experts, plans, resolve_device(device), slots=slots, cache_rate=rate
    )  # fmt: skip


def step(runtime: ExpertRuntime, layers: int, tokens: int, seed: int) -> list[Tensor]:
    """One step through all layers, each reading what the one before wrote."""
    chance = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, HIDDEN, generator=chance)
    runtime.begin_step()
    out = []
    for layer in range(layers):
        ids = torch.rand(tokens, EXPERTS, generator=chance).argsort(1)[:, :WIDTH]
        weights = torch.softmax(torch.randn(tokens, WIDTH, generator=chance), 1)
        x = runtime(layer, x, ids, weights)
        out.append(x)
    runtime.end_step()
    return out


def run(runtime: ExpertRuntime, layers: int) -> list[Tensor]:
    return [y for seed, tokens in enumerate(STEPS) for y in step(runtime, layers, tokens, seed)]


def assert_equal(first: list[Tensor], second: list[Tensor]) -> None:
    assert len(first) == len(second)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("storage", ["bfloat16", "fp8_block", "nvfp4"])
@pytest.mark.parametrize("rate", [1.0, 0.5, 0.2, 0.001])
def test_outputs_are_equal_whatever_the_cache_rate(storage: str, rate: float) -> None:
    experts = random_experts([storage] * 3, experts=EXPERTS, hidden=HIDDEN, inner=INNER)
    reference = run(make(experts, "cpu"), 3)
    runtime = make(experts, "sim", rate)
    assert runtime.slots == (max(1, int(rate * 18)),)
    assert_equal(run(runtime, 3), reference)


def test_outputs_are_equal_with_several_strides() -> None:
    experts = random_experts(
        ["nvfp4", "float32", "nvfp4"], experts=EXPERTS, hidden=HIDDEN, inner=INNER
    )
    reference = run(make(experts, "cpu"), 3)
    for slots in [(12, 6), (1, 1), (5, 2)]:
        runtime = make(experts, slots=slots)
        assert runtime.slots == slots
        assert_equal(run(runtime, 3), reference)


@pytest.mark.parametrize("seed", range(3))
def test_outputs_are_equal_after_evictions_and_resizes(seed: int) -> None:
    experts = random_experts(["nvfp4"] * 3, experts=EXPERTS, hidden=HIDDEN, inner=INNER)
    cpu, sim = make(experts, "cpu"), make(experts, "sim", 0.4)
    chance = random.Random(seed)
    for number in range(25):
        tokens = chance.choice([1, 1, 1, 4, 20])
        assert_equal(step(sim, 3, tokens, number), step(cpu, 3, tokens, number))
        _, residency = sim.pools[0]
        for _ in range(chance.randint(0, 3)):
            residency.release(chance.randrange(3), chance.randrange(EXPERTS))
        if chance.random() < 0.5:
            sim.resize([chance.randint(1, 18)])
        for layer in range(3):
            for expert in range(EXPERTS):
                slot = residency.slot_of(layer, expert)
                if slot != ABSENT:
                    assert torch.equal(sim.pools[0][0].bank[slot], sim.store.bank(layer)[expert])


def test_sim_computes_from_slots_and_not_from_the_store() -> None:
    experts = random_experts("float32", experts=EXPERTS, hidden=HIDDEN, inner=INNER)
    runtime = make(experts, "sim")
    before = step(runtime, 1, 40, 0)
    assert runtime.slots_used == EXPERTS
    runtime.store.bank(0).zero_()
    assert_equal(step(runtime, 1, 40, 0), before)
    runtime.pools[0][0].bank.zero_()
    assert float(step(runtime, 1, 40, 0)[0].abs().max()) == 0


def test_counters_count_experts_of_a_layer_and_step() -> None:
    experts = random_experts(["nvfp4"] * 2, experts=EXPERTS, hidden=HIDDEN, inner=INNER)
    runtime = make(experts, slots=(4,))
    x, weights = torch.randn(2, HIDDEN), torch.full((2, WIDTH), 1 / 3)
    first = torch.tensor([[0, 1, 2], [1, 2, 0]])
    runtime(0, x, first, weights)
    runtime(0, x, first, weights)
    runtime(1, x, torch.tensor([[0, 1, 2], [5, 4, 3]]), weights)
    counters = runtime.counters()
    # Three fills, three hits, then six experts through four slots.
    assert (counters.hits, counters.misses, counters.fills) == (3, 9, 9)
    assert counters.link_bytes == 9 * runtime.store.plan(0).spec.stride
    assert (counters.host_experts, counters.host_bytes) == (0, 0)
    assert (runtime.slots_used, runtime.experts_total) == (4, 12)


def count(runtime: ExpertRuntime) -> tuple[int, int, int]:
    counters = runtime.counters()
    return counters.hits, counters.misses, counters.fills


def test_filled_slots_are_no_misses() -> None:
    experts = random_experts(
        ["nvfp4", "float32", "nvfp4"], experts=EXPERTS, hidden=HIDDEN, inner=INNER
    )
    runtime, empty = make(experts), make(experts)
    runtime.fill_all()
    assert count(runtime) == (0, 0, 18)
    for seed, tokens in enumerate(STEPS):
        assert_equal(step(runtime, 3, tokens, seed), step(empty, 3, tokens, seed))
    hits, misses, fills = count(empty)
    assert count(runtime) == (hits + misses, 0, 18)
    assert misses == fills > 0


def test_a_layer_s_second_call_is_another_step() -> None:
    runtime = make(random_experts("nvfp4", experts=EXPERTS, hidden=HIDDEN, inner=INNER))
    runtime.fill_all()
    for ids in ([[0, 1]], [[1, 1]], [[5, 0]]):
        runtime(0, torch.randn(1, HIDDEN), torch.tensor(ids), torch.ones(1, 2))
    assert runtime.counters().hits == 5


def test_a_shrink_of_filled_slots_keeps_what_was_used() -> None:
    experts = random_experts(["nvfp4"] * 2, experts=EXPERTS, hidden=HIDDEN, inner=INNER)
    runtime = make(experts)
    runtime.fill_all()
    for ids in ([[4, 2]], [[1, 4]]):
        for layer in range(2):
            runtime(layer, torch.randn(1, HIDDEN), torch.tensor(ids), torch.ones(1, 2))
    runtime.resize([6])
    assert [entry.resident for entry in runtime.residency().layers] == [[1, 2, 4], [1, 2, 4]]
    assert runtime.counters().hits == 8
    runtime(0, torch.randn(1, HIDDEN), torch.tensor([[1, 2]]), torch.ones(1, 2))
    assert runtime.counters().hits == 10


def test_a_step_waits_where_one_of_its_layers_does() -> None:
    experts = random_experts(["nvfp4"] * 2, experts=EXPERTS, hidden=HIDDEN, inner=INNER)
    runtime = make(experts, "sim", 0.4)
    # As if a GPU read the store by itself.
    for pool in runtime._pools:
        pool.banks = runtime.store.banks(list(pool.rows), torch.device("cpu"))
    most = runtime.slots[0]
    for routes in (1, most, most + 1, 10 * EXPERTS):
        each = [runtime.never_waits(layer, routes) for layer in range(2)]
        assert runtime.step_never_waits(routes) == all(each) == (min(routes, EXPERTS) <= most)
    runtime.on_routing = lambda layer, ids: None
    assert not runtime.step_never_waits(1)
    assert not make(experts, "cpu").step_never_waits(1)


def test_a_trace_hears_every_call() -> None:
    experts = random_experts(["nvfp4"] * 2, experts=EXPERTS, hidden=HIDDEN, inner=INNER)
    for runtime in (make(experts, "cpu"), make(experts, "sim", 0.2)):
        heard: list[tuple[int, list[list[int]]]] = []
        runtime.on_routing = lambda layer, ids, heard=heard: heard.append((layer, ids))
        runtime(1, torch.randn(2, HIDDEN), torch.tensor([[4, 0], [0, 5]]), torch.ones(2, 2))
        assert heard == [(1, [[4, 0], [0, 5]])]


def test_cpu_reads_in_place_and_has_no_cache() -> None:
    experts = random_experts(["nvfp4"] * 2, experts=EXPERTS, hidden=HIDDEN, inner=INNER)
    runtime = make(experts, "cpu")
    step(runtime, 2, 30, 0)
    counters = runtime.counters()
    assert (counters.hits, counters.misses, counters.fills, counters.link_bytes) == (0, 0, 0, 0)
    assert counters.host_experts == 12
    assert counters.host_bytes == 12 * runtime.store.plan(0).spec.nbytes
    assert (runtime.slots, runtime.slots_used, runtime.slot_bytes) == ((), 0, 0)
    assert runtime.residency().layers == []


def test_residency_names_the_resident_experts_of_each_layer() -> None:
    experts = random_experts(
        ["nvfp4", "float32", "nvfp4"], experts=EXPERTS, hidden=HIDDEN, inner=INNER
    )
    runtime = make(experts)
    weights = torch.full((1, 2), 0.5)
    runtime(2, torch.randn(1, HIDDEN), torch.tensor([[5, 3]]), weights)
    runtime(1, torch.randn(1, HIDDEN), torch.tensor([[0, 1]]), weights)
    report = runtime.residency()
    assert report.experts == EXPERTS
    assert [(entry.layer, entry.resident) for entry in report.layers] == [
        (0, []),
        (1, [0, 1]),
        (2, [3, 5]),
    ]
    runtime.resize([1, 1])
    assert runtime.residency().generation == report.generation + 2
    # Both were used by one lookup, 5 after 3.
    assert runtime.residency().layers[2].resident == [5]


def test_a_shrink_gives_memory_back_and_keeps_the_hot() -> None:
    experts = random_experts(["nvfp4"] * 3, experts=EXPERTS, hidden=HIDDEN, inner=INNER)
    runtime = make(experts)
    for seed in range(6):
        step(runtime, 3, 20, seed)
    stride = runtime.store.plan(0).spec.stride
    assert runtime.slot_bytes == 18 * stride
    hot = magnitude(live_scores(runtime.pools[0][1].read()))
    runtime.resize([4])
    assert (runtime.slot_bytes, runtime.slots_used) == (4 * stride, 4)
    kept = torch.tensor([
        [expert in entry.resident for expert in range(EXPERTS)]
        for entry in runtime.residency().layers
    ]).numpy()  # fmt: skip
    assert hot[kept].min() >= hot[~kept].max()
    with pytest.raises(OutOfMemory):
        runtime.resize([19])
    assert (runtime.slots, runtime.slots_used) == ((4,), 4)


def test_resizing_waits_for_a_safe_point() -> None:
    runtime = make(random_experts("float32", experts=2, hidden=HIDDEN, inner=INNER))
    runtime.begin_step()
    with pytest.raises(RuntimeError, match="between steps"):
        runtime.resize([1])
    runtime.end_step()
    runtime.resize([1])


def test_all_slots_locked_is_an_error_and_not_a_hang() -> None:
    runtime = make(random_experts("float32", experts=2, hidden=HIDDEN, inner=INNER), slots=(1,))
    runtime.pools[0][1].lock(0)
    with pytest.raises(OutOfMemory, match="All 1 slots are locked; layer 0"):
        runtime(0, torch.randn(1, HIDDEN), torch.tensor([[1]]), torch.ones(1, 1))


def test_a_failed_fill_leaves_no_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    experts = random_experts("float32", experts=EXPERTS, hidden=HIDDEN, inner=INNER)
    runtime, reference = make(experts, slots=(3,)), make(experts, "cpu")
    x, weights = torch.randn(1, HIDDEN), torch.full((1, 2), 0.5)
    runtime(0, x, torch.tensor([[0, 1]]), weights)

    def fail(slot: int, blob: Tensor) -> None:
        raise OSError("the link is gone")

    with monkeypatch.context() as broken:
        broken.setattr(runtime.pools[0][0], "fill", fail)
        with pytest.raises(OSError, match="link"):
            runtime(0, x, torch.tensor([[2, 3]]), weights)
    assert 2 not in runtime.residency().layers[0].resident
    for ids in ([[2, 3]], [[0, 1]]):
        chosen = torch.tensor(ids)
        assert torch.equal(runtime(0, x, chosen, weights), reference(0, x, chosen, weights))


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.01, float("nan")])
def test_a_rate_out_of_range_is_refused(rate: float) -> None:
    experts = random_experts("float32", experts=2, hidden=HIDDEN, inner=INNER)
    with pytest.raises(InvalidRequest, match="moe_cache_rate") as caught:
        make(experts, "sim", rate)
    assert caught.value.param == "moe_cache_rate"


def test_odd_calls() -> None:
    experts = random_experts("float32", experts=2, hidden=HIDDEN, inner=INNER)
    for runtime in (make(experts, "cpu"), make(experts, "sim")):
        none = runtime(
            0,
            torch.empty(0, HIDDEN, dtype=torch.bfloat16),
            torch.empty((0, 2), dtype=torch.int64),
            torch.empty(0, 2),
        )
        assert (none.shape, none.dtype) == ((0, HIDDEN), torch.bfloat16)
        for wrong in (2, -1):
            with pytest.raises(ValueError, match="not all experts of 0"):
                runtime(0, torch.zeros(1, HIDDEN), torch.tensor([[wrong]]), torch.ones(1, 1))


def cuda_step(runtime: ExpertRuntime, seed: int, tokens: int) -> list[Tensor]:
    chance = torch.Generator().manual_seed(seed)
    out = []
    for layer in range(3):
        x = torch.randn(tokens, HIDDEN, generator=chance).cuda()
        ids = torch.rand(tokens, EXPERTS, generator=chance).argsort(1)[:, :WIDTH].cuda()
        weights = torch.rand(tokens, WIDTH, generator=chance).cuda()
        out.append(runtime(layer, x, ids, weights).cpu())
    return out


@pytest.mark.gpu
@pytest.mark.parametrize("storage", ["bfloat16", "fp8_block", "nvfp4"])
def test_cuda_is_equal_whatever_the_cache_rate(storage: str) -> None:
    experts = random_experts([storage] * 3, experts=EXPERTS, hidden=HIDDEN, inner=INNER)

    def outputs(rate: float) -> list[Tensor]:
        runtime = make(experts, "cuda", rate)
        steps = [cuda_step(runtime, seed, tokens) for seed, tokens in enumerate(STEPS)]
        return [y for step in steps for y in step]

    reference = outputs(1.0)
    for rate in (0.5, 0.2, 0.001):
        assert_equal(outputs(rate), reference)


@pytest.mark.gpu
def test_cuda_is_equal_after_growing_and_shrinking() -> None:
    experts = random_experts(["nvfp4"] * 3, experts=EXPERTS, hidden=HIDDEN, inner=INNER)
    changing, whole = make(experts, "cuda", 0.2), make(experts, "cuda")
    address = changing.pools[0][0].bank.data_ptr()
    for number, slots in enumerate([3, 18, 1, 7, 18, 2]):
        changing.resize([slots])
        assert changing.slots == (slots,)
        assert changing.pools[0][0].bank.data_ptr() == address
        for tokens in (1, 20):
            assert_equal(cuda_step(changing, number, tokens), cuda_step(whole, number, tokens))
        pool, residency = changing.pools[0]
        for layer in range(3):
            for expert in residency.resident(layer):
                slot = pool.bank[residency.slot_of(layer, expert)]
                assert torch.equal(slot.cpu(), changing.store.bank(layer)[expert])
