"""Residency on the GPU (or the interpreter) against residency in host memory, table by table."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.experts.residency import Counts, Residency
from engine.kernels.gpu import residency as kernels
from engine.kernels.residency import ABSENT, CAPACITY, GENERATION, STEP, Route
from tests.properties import examples

LAYERS, EXPERTS, MOST = 2, 5, 8
SAME = ("slot_of", "owner", "locked", "counters", "scores", "counts", "before", "tokens", "steps")
SAME += ("chosen", "credits")


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Iterator[None]:
    """So that a few slots need several of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "BLOCK_FREE", 4)
        yield


class Pair:
    """The same life twice: in host memory, and by the kernels."""

    def __init__(self, layers: int, experts: int, slots: int, most: int) -> None:
        self.host = Residency(layers, experts, slots, most=most)
        on = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.device = Residency(layers, experts, slots, most=most, device=on)
        self.both = self.host, self.device

    def begin_step(self) -> None:
        self.host.begin_step()
        tables = self.device.tables
        kernels.residency_begin(tables.state, tables)

    def route(self, layer: int, ids: Tensor) -> Route:
        wanted = self.host.route(layer, ids)
        tables = self.device.tables
        got = kernels.residency_route(ids.to(tables.state.device), layer, tables)
        self.compare(wanted, got)
        return wanted

    def route_counts(self, layer: int, ids: Tensor, tokens: int) -> None:
        counts = torch.bincount(ids[ids >= 0], minlength=self.host.experts).to(torch.int32)
        wanted = self.host.route_counts(layer, counts, tokens)
        tables = self.device.tables
        on = tables.state.device
        self.compare(wanted, kernels.residency_route_counts(counts.to(on), layer, tokens, tables))

    def compare(self, wanted: Route, got: Route) -> None:
        assert torch.equal(got.slots.cpu(), wanted.slots)
        count = int(wanted.count)
        assert int(got.count) == count
        assert torch.equal(got.fills[:count].cpu(), wanted.fills[:count])

    def compare_tables(self) -> None:
        kept = [CAPACITY, GENERATION]
        assert torch.equal(self.device.tables.state[kept].cpu(), self.host.tables.state[kept])
        for name in SAME:
            got, wanted = getattr(self.device.tables, name), getattr(self.host.tables, name)
            assert torch.equal(got.cpu(), wanted), name

    def lock(self, slot: int, locked: bool) -> None:
        for each in self.both:
            (each.lock if locked else each.unlock)(slot)

    def release(self, layer: int, expert: int) -> None:
        for each in self.both:
            each.release(layer, expert)

    def resize(self, slots: int) -> None:
        if bool(self.host.tables.locked[slots:].any()):
            return
        moves = [each.resize(slots) for each in self.both]
        assert moves[0] == moves[1]


ROUTES = st.integers(1, 3).flatmap(
    lambda width: st.lists(
        st.lists(st.integers(-1, EXPERTS - 1), min_size=width, max_size=width),
        min_size=1,
        max_size=3,
    )
)
"""Of some sequences: so many experts each; -1 where a sequence is only padding."""
STEPS = st.lists(
    st.fixed_dictionaries(
        {
            "lock": st.none() | st.tuples(st.integers(0, MOST - 1), st.booleans()),
            "release": st.none()
            | st.tuples(st.integers(0, LAYERS - 1), st.integers(0, EXPERTS - 1)),
            "resize": st.none() | st.integers(1, MOST),
            "routes": st.tuples(*[st.none() | ROUTES] * LAYERS),
            "tokens": st.none() | st.integers(0, 300),
        }
    ),
    min_size=1,
    max_size=5,
)


@given(slots=st.integers(1, MOST), steps=STEPS)
@settings(max_examples=examples(6))
def test_lives_of_a_pool(slots: int, steps: list[dict[str, object]]) -> None:
    pair = Pair(LAYERS, EXPERTS, slots, MOST)
    for step in steps:
        match step["lock"]:
            case (int(slot), bool(locked)) if slot < pair.host.slots:
                pair.lock(slot, locked)
        match step["release"]:
            case (int(layer), int(expert)):
                pair.release(layer, expert)
        match step["resize"]:
            case int(size):
                pair.resize(size)
        pair.begin_step()
        assert isinstance(step["routes"], tuple)
        for layer, ids in enumerate(step["routes"]):
            match step["tokens"]:
                case int(tokens) if ids is not None:
                    pair.route_counts(layer, torch.tensor(ids), tokens)
                case None if ids is not None:
                    pair.route(layer, torch.tensor(ids))
            pair.compare_tables()


def live(pair: Pair, steps: int, seed: int, tokens: int, width: int) -> None:
    """Random steps with skewed routing that drifts, and now and then a change between them."""
    chance = random.Random(seed)
    for step in range(steps):
        if chance.random() < 0.05:
            pair.resize(chance.randint(max(1, pair.host.most // 4), pair.host.most))
        for _ in range(chance.choice([0, 0, 0, 5])):
            pair.lock(chance.randrange(pair.host.slots), chance.random() < 0.3)
        if chance.random() < 0.1:
            pair.release(chance.randrange(pair.host.layers), chance.randrange(pair.host.experts))
        pair.begin_step()
        dtype = chance.choice([torch.int32, torch.int64])
        for layer in range(pair.host.layers):
            batch = chance.randint(1, tokens)
            ids = skewed(chance, pair.host.experts, batch, width, step).to(dtype)
            if chance.random() < 0.1:
                pair.route_counts(layer, ids, chance.choice([0, 1, batch, 1000]))
            else:
                pair.route(layer, ids)
        pair.compare_tables()


def skewed(chance: random.Random, experts: int, tokens: int, width: int, step: int) -> Tensor:
    rows = [
        [int(experts * chance.random() ** 2 + step // 20) % experts for _ in range(width)]
        for _ in range(tokens)
    ]
    return torch.tensor(rows)


@pytest.mark.parametrize(("slots", "tokens"), [(3, 2), (9, 1)])
def test_a_longer_life(slots: int, tokens: int) -> None:
    live(Pair(3, 6, slots, 12), 7, slots, tokens, 2)


def test_experts_beyond_the_last_are_absent() -> None:
    """The kernel cannot raise: it must not touch another layer's rows either."""
    pair = Pair(2, 4, 4, 4)
    pair.begin_step()
    tables = pair.device.tables
    got = kernels.residency_route(torch.tensor([[4, 1, -7]]).to(tables.state.device), 0, tables)
    assert got.slots.tolist() == [[ABSENT, 0, ABSENT]]
    assert tables.counts.tolist() == [[0, 1, 0, 0], [0, 0, 0, 0]]


def test_pools_too_large_for_the_keys_are_refused() -> None:
    tables = Residency(1, 1, 1, most=kernels.MOST_SLOTS + 1).tables
    with pytest.raises(ValueError, match="slots"):
        kernels.residency_route(torch.tensor([[0]]), 0, tables)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("slots", "tokens", "width"), [(400, 1, 8), (120, 8, 8), (60, 8, 16), (900, 8, 2)]
)
def test_a_thousand_steps(slots: int, tokens: int, width: int) -> None:
    live(Pair(5, 200, slots, 1000), 250, slots, tokens, width)


@pytest.mark.gpu
@pytest.mark.parametrize(("slots", "tokens"), [(3789, 1), (3789, 8), (1126, 8), (10240, 8)])
def test_a_large_model_s_steps(slots: int, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the blocks that the engine uses."""
    monkeypatch.setattr(kernels, "BLOCK_FREE", 2048)
    live(Pair(40, 256, slots, 10240), 12, slots, tokens, 8)


@pytest.mark.gpu
@pytest.mark.parametrize(("slots", "tokens"), [(30, 2), (60, 1), (12, 4)])
def test_a_captured_graph_replays_what_runs_eagerly(slots: int, tokens: int) -> None:
    """Through resizes and locks, with one capture."""
    layers, experts, width = 4, 40, 3
    pair = Pair(layers, experts, slots, 100)
    ids = [torch.zeros((tokens, width), dtype=torch.int64, device="cuda") for _ in range(layers)]

    def step() -> list[Route]:
        pair.device.begin_step()
        routes = [pair.device.route(layer, ids[layer]) for layer in range(layers)]
        pair.device.publish()
        return routes

    step()  # compiles
    pair.host.begin_step()
    for layer in range(layers):
        pair.host.route(layer, ids[layer].cpu())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = step()
    chance = random.Random(slots)
    for number in range(200):
        if number % 20 == 19:
            pair.resize(chance.randint(slots // 2, 100))
            pair.lock(chance.randrange(slots // 2), chance.random() < 0.5)
        for each in ids:
            each.copy_(skewed(chance, experts, tokens, width, number))
        graph.replay()
        pair.host.begin_step()
        for layer in range(layers):
            pair.compare(pair.host.route(layer, ids[layer].cpu()), got[layer])
        pair.compare_tables()
        counts: list[Counts] = [each.counts(STEP) for each in pair.both]
        assert counts[0] == counts[1]
        assert pair.host.counts() == pair.device.counts()


def test_a_prompt_of_a_new_length_waits_for_no_compiler() -> None:
    """Kernels are compiled anew for each constant; counts have none that depends on tokens."""
    by_ids = [
        kernels._route_constants(8 * tokens, tokens, counted=False) for tokens in range(2, 17)
    ]
    by_counts = [
        kernels._route_constants(256, tokens, counted=True) for tokens in range(1, 9000, 7)
    ]
    assert all(each == by_ids[0] for each in by_ids)
    assert all(each == by_counts[0] for each in by_counts)
