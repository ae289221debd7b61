"""The link benchmark: what it refuses without a GPU, what it prints and records with one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from engine import cli
from engine.errors import InvalidRequest, OutOfMemory
from engine.experts.store import plan_layers
from engine.formats.checkpoint import open_checkpoint
from engine.models.registry import describe, expert_tensors
from engine.paths import demo_model
from engine.runtime import bench_link


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "link", "--blob-bytes", "4096"]) == 1
    assert "The device cuda was asked for" in capsys.readouterr().err


def test_blobs_are_as_large_as_the_model_s(dense_model: Path) -> None:
    checkpoint = open_checkpoint(demo_model())
    spec = describe(checkpoint)
    plan = plan_layers(lambda n: expert_tensors(spec, checkpoint, n), spec.moe_layers)[0]
    assert bench_link._model_stride("demo") == plan.spec.stride
    with pytest.raises(InvalidRequest, match="has no routed experts") as refused:
        bench_link._model_stride(str(dense_model))
    assert "--blob-bytes" in refused.value.hint


def test_blobs_that_do_not_fit_are_refused() -> None:
    assert bench_link._host_bytes(1 << 20) == bench_link.HOST_BYTES
    with pytest.raises(OutOfMemory, match="half of what is free"):
        bench_link._host_bytes(1 << 40)


@pytest.mark.gpu
def test_it_prints_and_records_shares_of_the_best_copy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "link.json"
    measured = f"--blob-bytes 1769000 --rounds 3 --json {file}"
    assert cli.main(["bench", "link", *measured.split()]) == 0
    printed = capsys.readouterr().out
    record = json.loads(file.read_text())
    rows = {row["name"]: row for row in record["rows"]}
    best = max(row["value"] for name, row in rows.items() if name.startswith("link copy "))
    assert record["bench"] == "link" and record["model"] == "blobs of 1.77 MB"
    assert record["machine"]["link"] == pytest.approx(best, abs=0.06)
    for name in ("link copy 256 KiB", "link copy 65536 KiB", "link copies 4", "link gather 16"):
        assert name in printed
        assert rows[name]["unit"] == "GB/s" and rows[name]["versus"] == "the best copy"
        assert rows[name]["ratio"] == pytest.approx(rows[name]["value"] / best)
    assert rows["link gather 0"]["unit"] == "us"
