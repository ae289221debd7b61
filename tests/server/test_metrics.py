"""`/metrics` as Prometheus' own parser reads it, beside the live figures."""

from __future__ import annotations

from pathlib import Path

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from engine.messages import Stats
from engine.server.metrics import COUNTERS, GAUGES, LABELS
from tests.server.running import Server, running, wait_for

HISTOGRAMS = {"request_queue", "time_to_first_token", "time_between_tokens", "request"}


def read(server: Server) -> dict[str, float]:
    """Values by the name of a sample, those of several labels left out."""
    answer = server.http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = {}
    for family in text_string_to_metric_families(answer.text):
        assert family.name.startswith("headrace_") and family.documentation.endswith(".")
        assert family.type != "unknown"
        for sample in family.samples:
            if not sample.labels:
                found[sample.name] = sample.value
    return found


def test_every_figure_is_there() -> None:
    told = {*COUNTERS, *GAUGES, *LABELS, "state"}
    # The process's number and the words of an error are no figures, and times to the first token
    # are in a histogram.
    others = {"runtime_pid", "last_error", "ttft_s", "ttft_worst_s"}
    assert told | others == set(msgspec.structs.asdict(Stats()))


def test_figures_and_latencies(server: Server) -> None:
    before = read(server)
    server.chat(max_tokens=5, ignore_eos=True)
    wait_for(
        lambda: (
            read(server)["headrace_decode_tokens_total"]
            >= before["headrace_decode_tokens_total"] + 5
        ),
        10,
        "the runtime's report",
    )
    after, stats = read(server), server.stats()
    for field in COUNTERS:
        assert after[f"headrace_{field}_total"] == stats[field], field
    assert after["headrace_kv_tokens_capacity"] == stats["kv_tokens_total"]
    counts = {name: 5 - 1 if "between" in name else 1 for name in HISTOGRAMS}
    for name, count in counts.items():
        key = f"headrace_{name}_seconds"
        assert after[f"{key}_count"] - before[f"{key}_count"] == count, name
        assert after[f"{key}_sum"] > before[f"{key}_sum"] or name == "request_queue"
    text = server.http.get("/metrics").text
    assert 'headrace_state{headrace_state="ready"} 1.0' in text
    assert f'model="{server.model}"' in text and 'device="cpu"' in text
    assert "_created" not in text


def test_it_is_for_who_may_use_the_server(tiny_model: Path, tmp_path: Path) -> None:
    with running(tiny_model, tmp_path, "--api-key", "secret", ready=False) as server:
        for path in ("/metrics", "/v1/engine/stats"):
            assert server.http.get(path).status_code == 401
            key = {"Authorization": "Bearer secret"}
            assert server.http.get(path, headers=key).status_code == 200
