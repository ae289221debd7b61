"""benchmarks/endpoint.py measures a whole server and writes its record."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import msgspec
import pytest

from engine.runtime.bench_result import Result

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "endpoint.py"


def test_it_runs_and_writes_its_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("endpoint", SCRIPT)
    assert spec is not None and spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    sys.modules["endpoint"] = benchmark
    spec.loader.exec_module(benchmark)
    file = tmp_path / "result.json"
    few = ["--rounds", "2", "--streams", "3", "--seconds", "0.2", "--prompt", "50"]
    assert benchmark.main([*few, "--json", str(file)]) == 0
    result = msgspec.json.decode(file.read_bytes(), type=Result)
    names = {row.name for row in result.rows}
    for protocol in ("chat", "responses", "messages"):
        assert {f"first token {protocol}", f"3 streams {protocol} lag worst"} <= names
    assert {"grammar tree compile", "grammar calls mask p99"} <= names
    assert "first token chat" in capsys.readouterr().out
