"""The agents themselves, from their registry, in a cache folder of the user."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

# Fixed, so that a new release of theirs fails no test of ours; all run on Node 20.
PACKAGES = {
    "claude": "@anthropic-ai/claude-code@2.1.197",
    "codex": "@openai/codex@0.171.0",
    "opencode": "opencode-ai@1.18.33",
    "pi": "@mariozechner/pi-coding-agent@0.73.1",
}


@functools.cache
def folder_of(name: str) -> Path:
    """The folder with the agent's command. Skips the test where it cannot be had."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    package = PACKAGES[name]
    place = Path(base) / "headrace-tests" / package.replace("/", "-")
    binaries = place / "node_modules" / ".bin"
    if place.exists():
        return binaries
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("no Node here")
    # Made beside its place and moved there, since another run may be doing the same.
    place.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=place.parent, prefix="new-"))
    try:
        _install(npm, package, made)
        with contextlib.suppress(OSError):  # the other run was first
            made.rename(place)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return binaries


def _install(npm: str, package: str, place: Path) -> None:
    command = [npm, "install", "--prefix", str(place), "--no-audit", "--no-fund", package]
    fast = ["--fetch-retries=0", "--fetch-timeout=20000", "--loglevel=error"]
    try:
        done = subprocess.run([*command, *fast], capture_output=True, text=True, timeout=400)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{package} did not come in time")
    if done.returncode:
        pytest.skip(f"{package} cannot be installed: {done.stderr[-300:]}")
