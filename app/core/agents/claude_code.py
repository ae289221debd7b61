"""Claude Code: reads the variables that it is to have from settings.json."""

from __future__ import annotations

import json
import os
from pathlib import Path

from app.core.agents import jsonc
from app.core.agents.agent import Agent, ConfigEdit, Endpoint, Launch

_OTHER_SERVICES = ("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY")
"""Switches that lead around the base URL."""


def variables(endpoint: Endpoint) -> dict[str, str]:
    models = ("MODEL", *(f"DEFAULT_{size}_MODEL" for size in ("OPUS", "SONNET", "HAIKU")))
    return {
        "ANTHROPIC_BASE_URL": endpoint.url,
        # Unlike an API key, a token is used without asking whether it is approved of.
        "ANTHROPIC_AUTH_TOKEN": endpoint.some_key,
        **{f"ANTHROPIC_{name}": endpoint.model for name in models},
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        # Otherwise every prompt begins with a line of its own, and none can be reused.
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
    }


def _edits(endpoint: Endpoint) -> list[ConfigEdit]:
    def edit(text: str) -> str:
        for name, value in variables(endpoint).items():
            text = jsonc.put(text, ("env", name), value)
        present = jsonc.parse(text)["env"]
        for name in _OTHER_SERVICES:
            if name in present:
                text = jsonc.put(text, ("env", name), "0")
        return text

    folder = os.environ.get("CLAUDE_CONFIG_DIR")
    base = Path(folder) if folder else Path.home() / ".claude"
    return [ConfigEdit(base / "settings.json", edit)]


def _launch(endpoint: Endpoint, folder: Path) -> Launch:
    own = variables(endpoint)
    # Given settings go before those of the person, which could name another service.
    given = {"env": own | dict.fromkeys(_OTHER_SERVICES, "0")}
    return Launch(
        arguments=["--settings", str(folder / "settings.json")],
        environment=own,
        files={"settings.json": json.dumps(given)},
    )


AGENT = Agent("claude", "Claude Code", "claude", _edits, _launch)
