"""Each family's tiny model, made and saved once for all suites."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.parity.tiny import FAMILIES, random_model, save

Made = tuple[Any, Path]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    """By family: transformers' model, and the folder it is saved in."""
    models: dict[str, Made] = {}

    def make(family: str) -> Made:
        if family not in models:
            reference = random_model(FAMILIES[family]())
            models[family] = reference, save(reference, tmp_path_factory.mktemp(family))
        return models[family]

    return make
