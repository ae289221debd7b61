"""Packages that tests compare with, from their registries, in a cache folder of the user."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

FETCH_S = 400


def kept(name: str, make: Callable[[Path], None]) -> Path:
    """The folder of this name in the cache; `make` fills it the first time."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    place = Path(base) / "headrace-tests" / name
    if not place.exists():
        # Made beside its place and moved there, since another run may be doing the same.
        place.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=place.parent, prefix="new-"))
        try:
            make(made)
            made.rename(place)
        except OSError:
            if not place.exists():
                raise
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return place


@functools.cache
def python_packages(*pins: str) -> Path:
    """A folder to import these packages from, without what they depend on.

    Skips the test where they cannot be had.
    """
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--only-binary=:all:"]
    quiet = ["--quiet", "--disable-pip-version-check", "--retries=1", "--timeout=20"]
    return kept(
        "-".join(pins).replace("==", "-"),
        lambda folder: _run([*command, *quiet, "--target", str(folder), *pins], pins[0]),
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
    _run([*command, *quiet, "--dest", str(folder), pin], pin)
    (archive,) = folder.glob("*.tar.gz")
    return archive


def npm_archive(package: str, folder: Path) -> Path:
    """The archive of a package, put into `folder`. Skips the test where it cannot be had."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm here")
    fast = ["--fetch-retries=1", "--fetch-timeout=20000", "--loglevel=error"]
    _run([npm, "pack", package, "--pack-destination", str(folder), *fast], package)
    (archive,) = folder.glob("*.tgz")
    return archive


def _run(command: list[str], package: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_S)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{package} did not come in time")
    if done.returncode:
        pytest.skip(f"{package} cannot be had: {done.stderr[-300:]}")
