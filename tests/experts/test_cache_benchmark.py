"""benchmarks/expert_cache.py: its replays against traces whose answer is known."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

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


def test_replays_of_a_routing_that_never_changes(benchmark: ModuleType) -> None:
    def step() -> object:
        return benchmark.Step(decode=True, calls=[(0, [0, 1]), (1, [2, 3])])

    trace = [[step(), step()], [step(), step()]]
    # Four experts are used by each of the two steps that count.
    assert benchmark.cache_hits(trace, 2, 4, 4) == (8, 8)
    assert benchmark.lru_hits(trace, 4) == (8, 8)
    assert benchmark.lru_hits(trace, 2) == (0, 8)
    assert benchmark.placed_hits(trace, benchmark.hottest(trace, 4)) == (8, 8)
    assert benchmark.placed_hits(trace, {(0, 0)}) == (2, 8)


def test_prefill_warms_and_is_not_counted(benchmark: ModuleType) -> None:
    prefill = benchmark.Step(decode=False, calls=[(0, [0, 1, 2])])
    decode = benchmark.Step(decode=True, calls=[(0, [0, 3])])
    assert benchmark.cache_hits([[], [prefill, decode]], 1, 4, 4) == (1, 2)
    assert benchmark.lru_hits([[], [prefill, decode]], 4) == (1, 2)


def test_prompts_are_tokens(benchmark: ModuleType) -> None:
    text = benchmark.load_text_model(benchmark.locate("demo"))
    prompts = benchmark.prompts_of(text, 2048)
    assert len(prompts) == len(benchmark.QUESTIONS)
    assert all(isinstance(token, int) for prompt in prompts for token in prompt)


def test_it_runs_and_writes_its_record(
    benchmark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "result.json"
    assert benchmark.main(["--simulate", "1", "--rates", "0.2", "--json", str(file)]) == 0
    result = msgspec.json.decode(file.read_bytes(), type=Result)
    shares = {row.name: row.value for row in result.rows}
    assert shares["hits fixed whole layers 20%"] < shares["hits cache 20%"] < 100
    assert "hits cache 20%" in capsys.readouterr().out
