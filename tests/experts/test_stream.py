"""Streamed steps: the bits of any other, and every slot read holds what it claims when it is."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from engine.experts import stream as streaming
from engine.experts.copies import Copies
from engine.experts.regime import StreamMode
from engine.experts.residency import Residency
from engine.experts.runtime import ExpertRuntime
from engine.experts.slots import SlotPool
from engine.experts.store import plan_layers
from engine.formats.blob import BlobSpec
from engine.kernels.moe import moe_experts
from engine.kernels.residency import ABSENT
from engine.memory.device import resolve_device
from engine.options import DeviceName
from tests.experts.checkpoint_experts import RandomExperts, random_experts

LAYERS, EXPERTS, HIDDEN, INNER, WIDTH = 5, 8, 64, 32, 3


@pytest.fixture(scope="module")
def experts() -> RandomExperts:
    return random_experts(["nvfp4"] * LAYERS, experts=EXPERTS, hidden=HIDDEN, inner=INNER)


def make(
    experts: RandomExperts, slots: tuple[int, ...], device: DeviceName = "sim"
) -> ExpertRuntime:
    plans = plan_layers(experts, range(len(experts.layers)))
    return ExpertRuntime.load(experts, plans, resolve_device(device), slots=slots)


def forward(runtime: ExpertRuntime, tokens: int, seed: int, layers: int = LAYERS) -> list[Tensor]:
    """The layers of a step that has begun, each reading what the one before wrote. Some experts are
    routed to more than others, a few not at all."""
    chance = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, HIDDEN, generator=chance)
    liked = torch.rand(LAYERS, EXPERTS, generator=torch.Generator().manual_seed(5)) ** 3
    out = []
    for layer in range(layers):
        ids = torch.multinomial(liked[layer].expand(tokens, -1), WIDTH, generator=chance)
        weights = torch.softmax(torch.randn(tokens, WIDTH, generator=chance), 1)
        where = runtime.device.torch
        y = runtime(layer, x.to(where), ids.to(where), weights.to(where), min(tokens, 2)).cpu()
        out.append(y)
        x = torch.nn.functional.normalize(y) * 8
    return out


def step(
    runtime: ExpertRuntime, tokens: int, seed: int, mode: StreamMode | None = None
) -> list[Tensor]:
    try:
        if mode is None:
            runtime.begin_step()
        else:
            runtime.begin_step(tokens * WIDTH, mode, seeds=seed % 3 > 0)
        out = forward(runtime, tokens, seed)
    finally:
        runtime.end_step()
    runtime.seed()
    return out


def check(runtime: ExpertRuntime) -> None:
    """Every claim is true, nobody claims twice, and the books agree."""
    pool, residency = runtime.pools[0]
    owner = residency.tables.owner.tolist()
    claims = 0
    for layer in range(LAYERS):
        for expert in range(EXPERTS):
            slot = residency.slot_of(layer, expert)
            if slot != ABSENT:
                claims += 1
                assert owner[slot] == layer * EXPERTS + expert
                assert torch.equal(pool.bank[slot].cpu(), runtime.store.bank(layer)[expert])
    assert claims == sum(each != ABSENT for each in owner) == runtime.slots_used


class Logged(Copies):
    """Copies of host memory that write down what a GPU's streams would know of one another.

    Operations of each stream are numbered. `copies` has (slot, what it holds, number of the last
    computation that is over when the copy begins); `known` is the number of copies that are done
    for what is computed next.
    """

    def __init__(self) -> None:
        super().__init__(resolve_device("sim"))
        self.banks: list[Tensor] = []
        self.copies: list[tuple[int, tuple[int, int], int]] = []
        self.reads: list[tuple[dict[int, tuple[int, int]], int]] = []
        """Of each computation: what it reads in which slot, and `known`."""
        self.over = self.known = 0

    def follow(self) -> None:
        self.over = len(self.reads)

    def lead(self) -> None:
        self.known = len(self.copies)

    def computed(self) -> int:  # type: ignore[override]
        return len(self.reads)

    def copied(self) -> int:  # type: ignore[override]
        return len(self.copies)

    def after(self, mark: int) -> None:  # type: ignore[override]
        self.over = max(self.over, mark)

    def expect(self, mark: int | None) -> None:  # type: ignore[override]
        self.known = max(self.known, mark or 0)

    def fill(self, pool: SlotPool, bank: Tensor, fills: list[tuple[int, int]]) -> None:
        super().fill(pool, bank, fills)
        layer = next(n for n, each in enumerate(self.banks) if each is bank)
        self.copies += [(slot, (layer, expert), self.over) for expert, slot in fills]

    measured = fill

    def reach(self, mark: int) -> None:  # type: ignore[override]
        """Computations are numbered from 0, so those before `mark` are asked for."""
        assert mark <= len(self.reads)

    def check(self, before: dict[int, tuple[int, int]]) -> None:
        """`before` were in slots when the first copy was asked for."""
        for number, (read, known) in enumerate(self.reads):
            for slot, expected in read.items():
                held = [what for at, what, _ in self.copies[:known] if at == slot]
                assert (held[-1] if held else before[slot]) == expected
                for at, _, over in self.copies[known:]:
                    assert at != slot or over > number, "overwritten while it may be read"


def claims(residency: Residency) -> dict[int, tuple[int, int]]:
    owner = residency.tables.owner.tolist()
    return {slot: divmod(each, EXPERTS) for slot, each in enumerate(owner) if each != ABSENT}


@pytest.mark.parametrize("slots", [8, 9, 11, 13, 16, 17, 23, 30, 39])
def test_no_slot_is_overwritten_while_it_may_be_read(
    experts: RandomExperts, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, reference = make(experts, (slots,)), make(experts, (), "cpu")
    residency = runtime.pools[0][1]
    for seed in range(12):
        log = Logged()
        log.banks = [runtime.store.bank(layer) for layer in range(LAYERS)]
        monkeypatch.setattr(runtime._pools[0].stream, "_copies", log)

        def computed(
            bank: Tensor, spec: BlobSpec, x: Tensor, slots: Tensor, weights: Tensor, singles: int,
            most: int, log: Logged = log,
        ) -> Tensor:  # fmt: skip
            layer = len(log.reads)
            table = residency_of(runtime, layer)
            read = {slot: (layer, table[slot]) for slot in set(slots.reshape(-1).tolist())}
            log.reads.append((read, log.known))
            assert len(read) <= most
            return moe_experts(bank, spec, x, slots, weights, singles, most)

        monkeypatch.setattr(streaming, "moe_experts", computed)
        before = claims(residency)
        sent = runtime.counters().fills
        locked = random.Random(seed).sample(range(slots), max(0, min(2, slots - 8)))
        for slot in locked:
            residency.lock(slot)
        out = step(runtime, 6 + seed, seed, "always")
        for slot in locked:
            residency.unlock(slot)
        monkeypatch.setattr(streaming, "moe_experts", moe_experts)
        log.check(before)
        assert {slot for slot, _, _ in log.copies}.isdisjoint(locked)
        assert len(log.copies) == runtime.counters().fills - sent
        for got, wanted in zip(out, step(reference, 6 + seed, seed), strict=True):
            assert torch.equal(got, wanted)
        check(runtime)
        step(runtime, 1, seed)


def residency_of(runtime: ExpertRuntime, layer: int) -> dict[int, int]:
    """Experts of the layer by slot, as the streamed step in progress has them."""
    ring = runtime._pools[0].stream._ring
    assert ring is not None
    return {slot: expert for expert, slot in enumerate(ring.slots_of(layer).tolist())}


@pytest.mark.parametrize("storage", ["bfloat16", "fp8_block", "nvfp4"])
@pytest.mark.parametrize("slots", [40, 30, 15, 9, 8, 7, 1])
def test_outputs_are_equal_whatever_is_streamed(storage: str, slots: int) -> None:
    """Below 8 slots a layer does not fit, and its experts are computed in groups, as ever."""
    stored = random_experts([storage] * LAYERS, experts=EXPERTS, hidden=HIDDEN, inner=INNER)
    reference = make(stored, (), "cpu")
    modes: tuple[StreamMode, ...] = ("always", "serial")
    for mode in modes:
        runtime = make(stored, (slots,))
        for seed, tokens in enumerate([1, 20, 1, 7, 30, 1]):
            got = step(runtime, tokens, seed, mode if tokens > 1 else None)
            for mine, wanted in zip(got, step(reference, tokens, seed), strict=True):
                assert torch.equal(mine, wanted)
            check(runtime)


def test_layers_of_several_strides_stream_each_in_its_pool() -> None:
    storages = ["nvfp4", "float32", "nvfp4", "float32", "nvfp4"]
    stored = random_experts(storages, experts=EXPERTS, hidden=HIDDEN, inner=INNER)
    reference = make(stored, (), "cpu")
    for slots in [(12, 10), (8, 1), (24, 16), (20, 8)]:
        runtime = make(stored, slots)
        for seed, tokens in enumerate([20, 1, 9, 30]):
            got = step(runtime, tokens, seed, "always" if tokens > 1 else None)
            for mine, wanted in zip(got, step(reference, tokens, seed), strict=True):
                assert torch.equal(mine, wanted)


@pytest.mark.parametrize("seed", range(4))
def test_random_lives(experts: RandomExperts, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts, decodes, resizes, locks, evictions, and copies that fail in the middle of a step."""
    chance = random.Random(seed)
    reference = make(experts, (), "cpu")
    runtime = make(experts, (chance.randint(8, 40),))
    pool, residency = runtime.pools[0]
    fill, failures = pool.fill, 0
    for number in range(60):
        tokens = chance.choice([1, 1, 1, 3, 12, 25])
        mode: StreamMode | None = None
        if tokens > 1 and chance.random() < 0.75:
            mode = "serial" if chance.random() < 0.3 else "always"
        for slot in range(residency.slots):
            if chance.random() < 0.1:
                (residency.unlock if chance.random() < 0.8 else residency.lock)(slot)
        if chance.random() < 0.2:
            residency.release(chance.randrange(LAYERS), chance.randrange(EXPERTS))
        locked = {slot: residency.tables.owner[slot].item() for slot in residency._locked}
        if chance.random() < 0.25:
            left = chance.randint(0, 12)

            def fail(bank: Tensor, fills: list[tuple[int, int]]) -> None:
                nonlocal left
                left -= 1
                if left < 0:
                    raise OSError("the link is gone")
                fill(bank, fills)

            with monkeypatch.context() as broken:
                broken.setattr(pool, "fill", fail)
                try:
                    step(runtime, tokens, number, mode)
                except OSError:
                    failures += 1
        else:
            for mine, wanted in zip(
                step(runtime, tokens, number, mode), step(reference, tokens, number), strict=True
            ):
                assert torch.equal(mine, wanted)
        check(runtime)
        for slot, owner in locked.items():
            held = residency.tables.owner[slot].item()
            assert held == owner or owner == ABSENT
        for slot in list(residency._locked):
            residency.unlock(slot)
        if chance.random() < 0.1:
            runtime.resize([chance.randint(8, 40)])
            check(runtime)
    assert failures


def test_a_step_that_ends_early_leaves_true_claims(experts: RandomExperts) -> None:
    runtime = make(experts, (16,))
    for layers in range(LAYERS):
        runtime.begin_step(60, "always", seeds=True)
        forward(runtime, 20, layers, layers)
        runtime.end_step()
        runtime.seed()
        check(runtime)


def test_a_free_slot_is_kept_by_what_is_used_most(experts: RandomExperts) -> None:
    runtime = make(experts, (31,))
    step(runtime, 50, 1, "always")
    assert runtime.slots_used == 31
    shares = [len(entry.resident) for entry in runtime.residency().layers]
    assert min(shares) >= 3
    # The next step lacks nine in all, and sends no other.
    before = runtime.counters()
    step(runtime, 50, 0, "always")
    after = runtime.counters()
    assert after.fills - before.fills <= 40 - 31 + 16
    assert after.link_bytes == after.fills * runtime.store.plan(0).spec.stride


def test_decoding_hits_after_a_prompt_no_less_than_before(experts: RandomExperts) -> None:
    def decode(first: int) -> float:
        before = runtime.counters()
        for seed in range(first, first + 64):
            step(runtime, 1, seed)
        after = runtime.counters()
        hits, misses = after.hits - before.hits, after.misses - before.misses
        return hits / (hits + misses)

    for slots in (9, 15, 20, 30):
        runtime = make(experts, (slots,))
        decode(1000)
        settled = decode(2000)
        step(runtime, 200, 1, "always")
        assert decode(3000) >= settled - 0.02


def test_counters_of_a_streamed_step(experts: RandomExperts) -> None:
    runtime = make(experts, (40,))
    x, weights = torch.randn(2, HIDDEN), torch.full((2, 2), 0.5)

    def run(ids: list[list[int]]) -> tuple[int, int, int, int]:
        before = runtime.counters()
        runtime.begin_step(4, "always")
        for layer in range(LAYERS):
            runtime(layer, x, torch.tensor(ids), weights)
        runtime.end_step()
        after = runtime.counters()
        assert runtime.slots_used == after.fills <= 40
        names = ("hits", "misses", "fills")
        counts = [getattr(after, name) - getattr(before, name) for name in names]
        return (*counts, after.link_bytes // runtime.store.plan(0).spec.stride)

    # Two experts of each layer are routed to, all eight are sent.
    assert run([[0, 1], [1, 0]]) == (0, 10, 40, 40)
    # Nothing is absent: an ordinary step.
    assert run([[0, 1], [1, 5]]) == (15, 0, 0, 40)


def test_short_steps_and_traces_are_not_streamed(experts: RandomExperts) -> None:
    runtime = make(experts, (20,))
    runtime.begin_step(3)
    assert not runtime._pools[0].stream.active
    runtime.end_step()
    runtime.on_routing = lambda layer, ids: None
    runtime.begin_step(10_000, "always")
    assert not runtime._pools[0].stream.active
    runtime.end_step()


def test_layers_of_a_streamed_step_come_in_their_order(experts: RandomExperts) -> None:
    runtime = make(experts, (20,))
    runtime.begin_step(60, "always")
    with pytest.raises(RuntimeError, match="not its next one"):
        runtime(1, torch.randn(1, HIDDEN), torch.tensor([[1]]), torch.ones(1, 1))
    runtime.end_step()
    check(runtime)


@pytest.mark.gpu
@pytest.mark.parametrize("slots", [40, 30, 15, 9])
def test_cuda_is_equal_whatever_is_streamed(experts: RandomExperts, slots: int) -> None:
    whole, runtime = make(experts, (40,), "cuda"), make(experts, (slots,), "cuda")
    for seed, tokens in enumerate([1, 40, 1, 7, 300, 1, 90]):
        got = step(runtime, tokens, seed, "always" if tokens > 1 else None)
        for mine, wanted in zip(got, step(whole, tokens, seed), strict=True):
            assert torch.equal(mine, wanted)
        check(runtime)
