from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from engine.native.library import Library, library
from installers.native import compiler_name


@pytest.fixture(scope="session")
def built() -> Library:
    found = library()
    if found is None:
        if compiler_name():
            pytest.fail("a compiler is here and the library is not: python3 dev.py setup failed")
        pytest.skip("the native library is not built here: no C++ compiler")
    return found


@pytest.fixture
def native(built: Library) -> Iterator[Library]:
    """The library with one thread; whatever a test sets is taken back."""
    tier = built.tier
    torch.set_num_threads(1)
    yield built
    built.set_tier(tier)
    torch.set_num_threads(1)
    built.set_threads(1)


@pytest.fixture(params=["portable", "avx2", "avx512", "amx", "neon"])
def tier(native: Library, request: pytest.FixtureRequest) -> str:
    """Each instruction set that this machine has, in use."""
    name: str = request.param
    if name not in native.tiers:
        pytest.skip(f"this machine has no {name}")
    native.set_tier(name)
    return name
