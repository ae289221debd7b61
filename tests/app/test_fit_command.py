"""`headrace fit`, and the words in which estimates are told."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from app import cli
from app.core import fit_words
from app.core.catalog import catalog
from app.core.fit_command import estimate
from engine import paths
from engine.memory import machine_profile
from engine.memory.machine_profile import Measured
from engine.memory.pc import Pc, Rate, processor, this_pc, with_figures
from tests.app.downloads.fake_hub import FakeHub

PC = Pc(32 * 10**9, 30 * 10**9, 8, Rate(40e9, "measured on 2026-11-30", measured=True))
SHAPE = catalog().models[5]
FACTS = catalog().facts(SHAPE)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["fit", *words]) == 0
    return capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    return dict(json.loads(run(capsys, *words, "--json")))


def test_the_whole_catalog_in_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    said = run(capsys, "--ram", "64", "--vram", "24", "--host", "50", "--link", "25")
    for entry in catalog().models:
        assert entry.name in said
    assert "Fits" in said and "more memory" in said and "These are estimates" in said
    assert "not measured" not in said


def test_what_is_not_measured_is_said_with_what_is_assumed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = run(capsys, "demo", "--vram", "0")
    assert "Host memory: 20.0 GB/s (not measured yet: assumed)" in said
    assert "Host memory is not measured yet: 20 GB/s is assumed." in said
    hardware = machine_profile.host_hardware(processor(), this_pc(with_gpu=False).ram_total)
    when = "2026-11-30T10:00:00+00:00"
    measured = Measured(gb_per_s=47.5, when=when, hardware=hardware)
    machine_profile.remember(host=measured)
    said = run(capsys, "demo", "--vram", "0")
    assert "Host memory: 47.5 GB/s (measured on 2026-11-30)" in said and "assumed" not in said


def test_one_model_with_everything_behind_it(capsys: pytest.CaptureFixture[str]) -> None:
    said = run(capsys, SHAPE.repo, "--ram", "48", "--vram", "12", "--link", "25", "--host", "40")
    for words in ("Experts in VRAM", "Found there", "tok/s", "First token", "an estimate"):
        assert words in said


def test_json_has_figures_and_no_words_to_parse(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, "demo", "--ram", "16", "--vram", "0", "--host", "30")
    assert found["estimate"] is True and found["pc"]["ram_total"] == 16e9
    (model,) = found["models"]
    assert model["verdict"] == "fits" and model["backend"] == "cpu"
    assert 0 < model["decode"]["low"] < model["decode"]["high"]
    assert model["context_tokens"] == 2048


def test_a_folder_that_holds_no_model_is_an_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["fit", str(tmp_path)]) == 1
    assert "holds no model" in capsys.readouterr().err


def test_a_repository_that_the_catalog_does_not_have_is_asked_of_the_hub(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    files = {"config.json": (paths.demo_model() / "config.json").read_bytes()}
    files["model.safetensors"] = b"never fetched"
    with FakeHub(files).running() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        said = run(capsys, "org/model", "--ram", "8", "--vram", "0")
        assert "org/model: qwen2_moe, nvfp4" in said and "Fits" in said
        assert hub.served("model.safetensors") == []
        assert cli.main(["fit", "org/nothing"]) == 1
    assert "org/nothing" in capsys.readouterr().err


class TestWords:
    def test_badges(self) -> None:
        fits = fit_words.badge(estimate(FACTS, with_figures(PC, ram=64e9)))
        words = r"Fits: needs 35\.\d GB of memory, about [\d.]+ tok/s here"
        assert fits.kind == "good" and re.fullmatch(words, fits.text)
        large = fit_words.badge(estimate(FACTS, PC))
        assert large.kind == "bad" and re.fullmatch(r"Needs 3\.\d\d GB more memory", large.text)
        busy = Pc(64 * 10**9, 10 * 10**9, 8, PC.host)
        when = fit_words.badge(estimate(FACTS, busy))
        words = r"Fits once 25\.\d GB more memory is free, then about [\d.]+ tok/s here"
        assert when.kind == "warn" and re.fullmatch(words, when.text)
        resident = fit_words.badge(estimate(FACTS, with_figures(PC, ram=64e9, vram=80e9)))
        assert resident.text.startswith("Fits, all in VRAM: about")

    def test_rates_have_two_figures(self) -> None:
        said = [fit_words.tokens(value) for value in (4.17, 9.96, 38.4, 142.6, 1053.0)]
        assert said == ["4.2", "10.0", "38", "140", "1,100"]

    def test_a_context_beyond_the_model_s_is_cut_to_it(self) -> None:
        found = estimate(FACTS, with_figures(PC, ram=500e9), context_tokens=10_000_000)
        assert found.budget is not None
        assert found.budget.context_tokens == FACTS.spec.context_tokens
