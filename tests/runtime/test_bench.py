"""The decode benchmark on tiny models: what it prints, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import LlamaConfig

from engine import cli
from engine.runtime import bench, bench_twin
from tests.runtime.conftest import SMALL, save


def run_decode(arguments: list[str]) -> int:
    return cli.main(["bench", "decode", *arguments])


def test_it_measures_beside_transformers_and_writes_the_record(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "new" / "here.json"
    measured = f"--model {model} --tokens 12 --rounds 2 --threads 1 --device cpu --json {file}"
    code = run_decode(measured.split())
    printed = capsys.readouterr().out
    assert code == 0
    record = json.loads(file.read_text())
    assert (record["schema"], record["bench"], record["model"]) == (1, "decode", model.name)
    assert {"commit", "when", "machine"} <= record.keys()
    machine = record["machine"]
    assert machine["threads"] == 1 and machine["stream"] > 0 and not machine["emulated"]
    ours, theirs = record["rows"]
    assert ours["name"] == "decode cpu float32" and theirs["name"].startswith("decode transformers")
    assert ours["ratio"] == pytest.approx(ours["value"] / theirs["value"])
    assert record["notes"] == ["The first 12 of 12 greedy tokens are equal in both."]
    assert "decode cpu float32" in printed and "tok/s" in printed and str(file) in printed


def test_a_twin_ties_its_embedding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tied = save(LlamaConfig(**SMALL, tie_word_embeddings=True), tmp_path / "tied")
    arguments = ["--model", str(tied), "--tokens", "8", "--rounds", "1", "--threads", "1"]
    assert run_decode([*arguments, "--device", "cpu"]) == 0
    assert "first 8 of 8 greedy tokens are equal" in capsys.readouterr().out


def test_slots_are_in_the_name(moe_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", str(moe_model), "--tokens", "4", "--rounds", "1", "--threads", "1"]
    assert run_decode([*arguments, "--device", "sim", "--moe-cache-rate", "0.5"]) == 0
    assert "decode sim 50% float32" in capsys.readouterr().out


def test_tokens_may_be_drawn_and_hits_are_told(
    moe_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--model", str(moe_model), "--tokens", "6", "--rounds", "2", "--threads", "1"]
    assert run_decode([*arguments, "--device", "sim", "--sampled", "--moe-cache-rate", "1"]) == 0
    printed = capsys.readouterr().out
    assert "of the experts routed to were in a slot" in printed and "transformers" not in printed


def test_without_transformers_it_says_so(
    dense_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "transformers_version", lambda: "")
    arguments = ["--model", str(dense_model), "--tokens", "4", "--rounds", "1", "--threads", "1"]
    assert run_decode(arguments) == 0
    printed = capsys.readouterr().out
    assert "not installed" in printed and " x transformers" not in printed


def test_transformers_is_found_where_it_is_installed() -> None:
    import transformers

    assert bench_twin.transformers_version() == transformers.__version__


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "MEASUREMENT"),
        (["warp"], "warp"),
        (["decode", "--rounds", "0"], "--rounds"),
        (["decode", "--tokens", "1"], "--tokens"),
        (["decode", "--moe-cache-rate", "2"], "--moe-cache-rate"),
    ],
)
def test_mistakes_of_usage(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        cli.main(["bench", *arguments])
    assert raised.value.code == 2
    assert says in capsys.readouterr().err.splitlines()[-1]


def test_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_decode(["--model", "/nowhere/at/all", "--alone"]) == 1
    assert "/nowhere/at/all" in capsys.readouterr().err


def test_a_record_that_cannot_be_written_is_refused_before_the_measurement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is no such model, so that a measurement would complain about that."""
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "record.json"):
        assert run_decode(["--model", "/nowhere/at/all", "--json", str(path)]) == 1
        assert f"--json {path} cannot be written" in capsys.readouterr().err
    assert run_decode(["--model", "/nowhere/at/all", "--json", str(tmp_path / "new.json")]) == 1
    assert "/nowhere/at/all" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_run_that_does_not_fit_is_an_error(
    dense_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--model", str(dense_model), "--tokens", "300", "--alone", "--threads", "1"]
    assert run_decode(arguments) == 1
    assert "tokens were decoded" in capsys.readouterr().err
