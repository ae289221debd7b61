"""Measured rates are kept, one beside the other, and a damaged file costs nothing but them."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from engine.memory import machine_profile
from engine.memory.machine_profile import MachineProfile, Measured

LINK = Measured(gb_per_s=25.0, when="2026-11-30T10:00:00+00:00", hardware="RTX")
HOST = Measured(gb_per_s=47.5, when="2026-11-30T10:00:00+00:00", hardware="CPU, 32 GB")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_one_rate_leaves_the_other() -> None:
    assert machine_profile.load() == MachineProfile()
    machine_profile.remember(link=LINK)
    machine_profile.remember(host=HOST)
    assert machine_profile.load() == MachineProfile(link=LINK, host=HOST)


def test_a_damaged_file_is_told_and_costs_only_the_rates(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home.mkdir()
    (home / "machine.json").write_text('{"link": 5')
    with caplog.at_level(logging.WARNING):
        assert machine_profile.load() == MachineProfile()
    assert "no rate counts as measured" in caplog.text
    machine_profile.remember(host=HOST)
    assert machine_profile.load().host == HOST
