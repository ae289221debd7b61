"""The prefill benchmark: its rows, its floor and its record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine import cli


def test_it_measures_each_length_beside_the_link_s_floor(
    moe_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prefill.json"
    arguments = ["--model", str(moe_model), "--device", "sim", "--threads", "1", "--rounds", "2"]
    arguments += ["--moe-cache-rate", "0.5", "--lengths", "60", "20", "--emulate-link", "0.001"]
    arguments += ["--prefill-chunk", "32"]
    assert cli.main(["bench", "prefill", *arguments, "--json", str(file)]) == 0
    record = json.loads(file.read_text())
    machine = record["machine"]
    assert machine["emulated"] and machine["emulated_link"] == 0.001
    rows = {row["name"]: row for row in record["rows"]}
    # Half of 16 experts of 3 x 32 x 16 float32 weights, in blobs of whole pages.
    absent = 8 * 8192
    for tokens, chunks in ((20, 1), (60, 2)):
        row = rows[f"prefill sim 50% {tokens}"]
        floor = rows[f"prefill sim 50% {tokens} floor"]["value"]
        assert floor == pytest.approx(chunks * absent / 1e6)
        assert row["ratio"] == pytest.approx(row["value"] / floor)
        speed = rows[f"prefill sim 50% {tokens} speed"]["value"]
        assert speed == pytest.approx(tokens / row["value"])
        assert rows[f"prefill sim 50% {tokens} first seen"]["value"] > 0
    for when in ("before", "after"):
        assert 0 < rows[f"hits of 64 decoded tokens {when} 60"]["value"] < 100
    assert "emulated" in capsys.readouterr().out


def test_beside_all_experts_on_the_device(
    moe_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--model", str(moe_model), "--device", "sim", "--threads", "1", "--rounds", "1"]
    arguments += ["--moe-cache-rate", "0.5", "--lengths", "40", "--resident"]
    assert cli.main(["bench", "prefill", *arguments]) == 0
    printed = capsys.readouterr().out
    assert "prefill resident 40" in printed and "x 40: all experts resident" in printed
