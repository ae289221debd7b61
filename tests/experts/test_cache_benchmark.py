"""benchmarks/expert_cache.py: its replays against traces whose answer is known."""

from __future__ import annotations

import importlib.util
import itertools
import random
import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from engine.experts.residency import Residency
from engine.runtime.bench_result import Result

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "expert_cache.py"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("expert_cache", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["expert_cache"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def routing(benchmark: ModuleType) -> ModuleType:
    """Found once `benchmark` is there."""
    return sys.modules[benchmark.Routes.__module__]


@pytest.fixture(scope="module")
def replays(benchmark: ModuleType) -> ModuleType:
    return sys.modules[benchmark.FixedHalfLife.__module__]


def test_replays_of_a_routing_that_never_changes(routing: ModuleType, replays: ModuleType) -> None:
    def step() -> object:
        return routing.Step(decode=True, calls=[(0, [[0, 1]]), (1, [[2, 3], [3, 2]])])

    trace = [[step(), step()], [step(), step()]]
    # Four experts are used by each of the two steps that count.
    assert replays.residency_hits(trace, Residency(2, 4, 4)) == (8, 8)
    assert replays.lru_hits(trace, 4) == (8, 8)
    assert replays.lru_hits(trace, 2) == (0, 8)
    assert replays.best_hits(trace, 4) == (8, 8)
    # One stays while the other three come and go through two slots.
    assert replays.best_hits(trace, 3) == (4, 8)
    assert replays.placed_hits(trace, replays.hottest(trace, 4)) == (8, 8)
    assert replays.placed_hits(trace, {(0, 0)}) == (2, 8)


def test_prefill_warms_and_is_not_counted(routing: ModuleType, replays: ModuleType) -> None:
    prefill = routing.Step(decode=False, calls=[(0, [[0, 1], [2, 1]])])
    decode = routing.Step(decode=True, calls=[(0, [[0, 3]])])
    assert replays.residency_hits([[], [prefill, decode]], Residency(1, 4, 4)) == (1, 2)
    assert replays.lru_hits([[], [prefill, decode]], 4) == (1, 2)
    assert replays.best_hits([[], [prefill, decode]], 4) == (1, 2)


@pytest.mark.parametrize("slots", [1, 2, 3, 4, 6])
def test_no_order_of_going_hits_more_than_the_best(
    routing: ModuleType, replays: ModuleType, slots: int
) -> None:
    """By search through all that a cache of so many slots could keep."""
    chance = random.Random(slots)
    calls = [[sorted(chance.sample(range(6), 2))] for _ in range(7)]
    trace = [[routing.Step(decode=True, calls=[(0, ids)]) for ids in calls]]
    kept: dict[frozenset[int], int] = {frozenset(): 0}
    for [wanted] in calls:
        after: dict[frozenset[int], int] = {}
        for held, found in kept.items():
            there = held | set(wanted)
            for left in itertools.combinations(sorted(there), min(slots, len(there))):
                few, many = sorted([set(wanted), set(left)], key=len)
                if few <= many:
                    total = found + len(held & set(wanted))
                    after[frozenset(left)] = max(after.get(frozenset(left), 0), total)
        kept = after
    assert replays.best_hits(trace, slots)[0] == max(kept.values())


def test_a_fixed_half_life_stays(routing: ModuleType, replays: ModuleType) -> None:
    routes = routing.simulated(1)
    table = replays.FixedHalfLife(routes.layers, routes.experts, 300, 3)
    replays.residency_hits(routes.conversations[:2], table)
    assert set(table.tables.chosen.tolist()) == {3}


def test_a_file_of_routes_is_read_as_it_was_written(routing: ModuleType, tmp_path: Path) -> None:
    routes = routing.simulated(2)
    routing.write(routes, tmp_path / "routes.json")
    assert routing.read(tmp_path / "routes.json") == routes
    small = routing.Routes(routes.model, routes.layers, 8, routes.conversations)
    routing.write(small, tmp_path / "routes.json")
    with pytest.raises(ValueError, match="beyond"):
        routing.read(tmp_path / "routes.json")


def test_prompts_are_tokens(benchmark: ModuleType) -> None:
    text = benchmark.load_text_model(benchmark.locate("demo"))
    prompts = benchmark.prompts_of(text, 2048)
    assert len(prompts) == len(benchmark.QUESTIONS)
    assert all(isinstance(token, int) for prompt in prompts for token in prompt)


def test_it_runs_and_writes_its_record(
    benchmark: ModuleType,
    routing: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routing, "SIMULATED", (4, 32, 3))
    file, routes = tmp_path / "result.json", tmp_path / "routes.json"
    few = ["--rates", "0.2", "--json", str(file)]
    assert benchmark.main(["--simulate", "1", "--write-routes", str(routes), *few]) == 0
    result = msgspec.json.decode(file.read_bytes(), type=Result)
    shares = {row.name: row.value for row in result.rows}
    assert shares["hits fixed whole layers 20%"] < shares["hits cache 20%"] < 100
    assert max(shares.values()) == shares["hits best possible 20%"]
    assert "hits cache 20%" in capsys.readouterr().out
    assert benchmark.main(["--routes", str(routes), *few]) == 0
    again = msgspec.json.decode(file.read_bytes(), type=Result)
    assert (again.rows, again.model) == (result.rows, result.model)
