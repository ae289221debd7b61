"""The recorder on this machine, beside a server and beside none."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from app.core.governor import arbiter, record
from app.core.governor.arbiter import Memory, State
from app.core.governor.evidence import Evidence
from app.core.governor.policy import Policy
from tests.app.conftest import STAND_IN, wait_until

FIGURES = '{"device": "cuda", "runtime_pid": 5, "vram_dense_bytes": 700, "vram_expert_bytes": 300}'


def test_a_line_is_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    assert record.main(["--seconds", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    seen = [msgspec.json.decode(line, type=Evidence) for line in lines]
    assert [round(one.at) for one in seen] == [0, 1]
    assert all(one.engine is not None and one.engine.held_bytes == 0 for one in seen)
    memory = Memory()
    for one in seen:
        memory = arbiter.decide(memory, one, Policy())
    assert memory.state is not State.IDLE


def test_a_server_s_engine_is_recorded_with_its_figures(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STAND_IN_STATS", FIGURES)
    with subprocess.Popen([sys.executable, STAND_IN, "serve"], stdout=subprocess.PIPE) as server:
        wait_until(lambda: bool(list(home.glob("servers/*.json"))))
        found = record.engine_now()
        server.terminate()
    assert (found.held_bytes, found.pid, found.age_s) == (1000, 5, 0.0)
    assert found.identity.startswith(str(server.pid))
    assert record.engine_now().identity == "none"
