"""Measurements of what somebody waits for: their rows and records, and that options reach the
server that is measured."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from engine import cli
from engine.cli.engine_options import add_engine_options, engine_arguments, engine_options
from engine.errors import HeadraceError
from engine.options import EngineOptions
from engine.runtime.bench_server import serving

SIM = ["--device", "sim", "--moe-cache-rate", "0.5", "--threads", "1", "--rounds", "1"]


def measured(name: str, file: Path, *arguments: str) -> dict[str, dict[str, float]]:
    assert cli.main(["bench", name, *SIM, *arguments, "--json", str(file)]) == 0
    record = json.loads(file.read_text())
    assert record["bench"] == name and record["machine"]["emulated"]
    return {row["name"]: row for row in record["rows"]}


def test_an_answer_waits_for_a_prompt(moe_model: Path, tmp_path: Path) -> None:
    arguments = ["--model", str(moe_model), "--prompt-tokens", "100", "--prefill-chunk", "16"]
    rows = measured("interleave", tmp_path / "gap.json", *arguments)
    gap = rows["interleave sim 100 longest gap"]
    chunk = rows["interleave sim 100 longest chunk's step"]
    # Between two tokens of the answer there is at least the step that gave the second one.
    assert gap["value"] >= chunk["value"] > 0
    assert gap["ratio"] == pytest.approx(gap["value"] / chunk["value"])
    note = json.loads((tmp_path / "gap.json").read_text())["notes"][0]
    assert note.startswith("7 steps of up to 16 tokens")


def test_a_client_s_first_text_is_waited_for(tmp_path: Path) -> None:
    arguments = ["--lengths", "30", "--talk-tokens", "50"]
    rows = measured("ttft", tmp_path / "ttft.json", *arguments)
    for name in ("ttft sim 30", "ttft sim 30 after 50"):
        assert rows[name]["value"] > 0 and rows[f"{name} first seen"]["value"] > 0
    worst = rows["ttft sim worst, by the engine's own count"]["value"]
    assert 0 < worst <= max(row["value"] for row in rows.values())


def test_a_start_has_stages(tmp_path: Path) -> None:
    rows = measured("load", tmp_path / "load.json")
    assert {"load listening", "load starting", "load ready", "load first text"} <= set(rows)
    stages = [
        row["value"]
        for name, row in rows.items()
        if name not in ("load ready", "load first text", "load first text after")
    ]
    assert sum(stages) == pytest.approx(rows["load ready"]["value"])
    after = rows["load first text after"]["value"]
    assert rows["load first text"]["value"] == pytest.approx(rows["load ready"]["value"] + after)


def test_what_a_server_lacks_is_told(tmp_path: Path) -> None:
    missing = str(tmp_path / "absent")
    with pytest.raises(HeadraceError, match="absent"), serving(["--model", missing]) as server:
        server.stages()


def test_arguments_mean_the_options_they_are_made_of() -> None:
    parser = argparse.ArgumentParser()
    add_engine_options(parser, log_level="info")
    for options in (
        EngineOptions(model="demo"),
        EngineOptions(
            model="-odd name",
            device="sim",
            dtype="bfloat16",
            moe_cache_rate=0.37,
            max_sequences=3,
            max_waiting=4,
            context_tokens=500,
            kv_tokens=600,
            kv_reserve_tokens=700,
            prefill_chunk_tokens=64,
            threads=2,
            emulate_ram_bytes=1 << 33,
            emulate_vram_bytes=3 << 30,
            emulate_link_bytes_per_s=12_500_000_000,
            lock_memory=True,
        ),
    ):
        assert engine_options(parser.parse_args(engine_arguments(options))) == options
