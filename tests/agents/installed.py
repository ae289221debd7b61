"""The agents themselves, from their registry, in a cache folder of the user."""

from __future__ import annotations

import functools
from pathlib import Path

from tests.fetched import fetching, kept, npm

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
    package = PACKAGES[name]

    def install(place: Path) -> None:
        command = npm("install", "--prefix", str(place), "--no-audit", "--no-fund", package)
        fetching(command, package)

    return kept(package.replace("/", "-"), install) / "node_modules" / ".bin"
