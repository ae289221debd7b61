"""Health, live figures, residency, and the state file."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import psutil

from engine.messages import Stats
from tests.server.running import Server, frames, running


def test_health_and_stats(server: Server) -> None:
    assert server.health() == {"status": "ready", "model": server.model}
    before = server.stats()
    server.chat()
    stats = server.stats()
    # Exactly the fields of the record, so that the app can rely on it.
    msgspec.convert(stats, Stats)
    assert set(stats) == set(msgspec.structs.asdict(Stats()))
    assert stats["state"] == "ready" and stats["model"] == server.model
    assert stats["device"] == "cpu" and stats["runtime_restarts"] == 0
    assert stats["server_uptime_s"] > before["server_uptime_s"]
    assert psutil.Process(stats["runtime_pid"]).ppid() == server.process.pid


def test_the_stream_of_stats(server: Server) -> None:
    with server.http.stream("GET", "/v1/engine/stats/stream?interval=0.1") as response:
        source = frames(response)
        first, second = next(source), next(source)
    assert first["state"] == "ready" and second["server_uptime_s"] > first["server_uptime_s"]
    for interval in ("0", "x", "nan", "1e9"):
        answer = server.http.get(f"/v1/engine/stats/stream?interval={interval}")
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "interval"


def test_residency(server: Server) -> None:
    answer = server.http.get("/v1/engine/residency").json()
    assert set(answer) == {"experts", "generation", "layers"}


def test_the_record_says_what_runs(server: Server) -> None:
    state = json.loads(server.file("json").read_text())
    process = psutil.Process(server.process.pid)
    assert (state["pid"], state["started"]) == (process.pid, process.create_time())
    assert state["argv"] == process.cmdline()
    assert (state["host"], state["port"]) == ("127.0.0.1", server.port)
    assert Path(state["control_token_file"]) == server.file("token")


def test_while_the_model_loads_requests_get_progress(tiny_model: Path, tmp_path: Path) -> None:
    with running(tiny_model, tmp_path, "--device", "cpu", ready=False) as server:
        health = server.http.get("/health")
        assert health.status_code == 503 and health.headers["retry-after"]
        assert health.json()["status"] == "loading"
        assert {"phase", "done", "total", "unit", "model"} <= set(health.json())
        answer = server.chat()
        assert answer.status_code == 503 and answer.headers["retry-after"]
        assert answer.json()["error"]["code"] == "runtime_unavailable"
        assert "loading" in answer.json()["error"]["message"]
        message = {"model": server.model, "messages": [{"role": "user", "content": "x"}]}
        overloaded = server.http.post("/v1/messages", json={**message, "max_tokens": 1})
        assert overloaded.json()["error"]["type"] == "overloaded_error"
        # The text side is there long before the weights are.
        assert server.http.post("/v1/messages/count_tokens", json=message).status_code == 200
        assert server.http.get("/v1/models").json()["data"][0]["id"] == server.model
        # Ended while it loads: `running` checks that nothing is left.
