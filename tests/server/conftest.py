from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.running import Server, running
from tests.server.speaking import HARMONY, HARMONY_MARKS, HERMES, Speaker, speaking
from tests.server.tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny-moe")


@pytest.fixture(scope="session")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for every test that leaves it as it was."""
    with running(tiny_model, tmp_path_factory.mktemp("home"), "--device", "cpu") as started:
        yield started


@pytest.fixture(scope="session")
def hermes(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Speaker]:
    with speaking(tiny_model, tmp_path_factory.mktemp("hermes"), HERMES) as speaker:
        yield speaker


@pytest.fixture(scope="session")
def harmony(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Speaker]:
    folder = tmp_path_factory.mktemp("harmony")
    with speaking(tiny_model, folder, HARMONY, marks=HARMONY_MARKS) as speaker:
        yield speaker
