"""OpenCode: a provider of its own in opencode.json or opencode.jsonc."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from app.core.agents import jsonc
from app.core.agents.agent import PROVIDER, Agent, ConfigEdit, Endpoint, Launch

_SCHEMA = "https://opencode.ai/config.json"


def _provider(endpoint: Endpoint) -> dict[str, Any]:
    model: dict[str, Any] = {"name": endpoint.model}
    if endpoint.context_tokens:
        # What an answer may have at most is the context too, less its prompt.
        output = min(endpoint.context_tokens // 4, 32_768)
        model["limit"] = {"context": endpoint.context_tokens, "output": output}
    return {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Headrace",
        "options": {"baseURL": endpoint.openai_url, "apiKey": endpoint.some_key},
        "models": {endpoint.model: model},
    }


def _chosen(endpoint: Endpoint) -> dict[str, str]:
    return dict.fromkeys(("model", "small_model"), f"{PROVIDER}/{endpoint.model}")


def _edits(endpoint: Endpoint) -> list[ConfigEdit]:
    def edit(text: str) -> str:
        # OpenCode adds its schema where there is none; then the file would count as changed.
        if not text.strip("\ufeff \t\r\n") or "$schema" not in jsonc.parse(text):
            text = jsonc.put(text, ("$schema",), _SCHEMA)
        text = jsonc.put(text, ("provider", PROVIDER), _provider(endpoint))
        for name, value in _chosen(endpoint).items():
            text = jsonc.put(text, (name,), value)
        return text

    base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "opencode"
    commented = base / "opencode.jsonc"
    return [ConfigEdit(commented if commented.exists() else base / "opencode.json", edit)]


def _launch(endpoint: Endpoint, _folder: Path) -> Launch:
    # The one source that goes before all others. No further provider is loaded, so that a login
    # stored for one is not used.
    content = {
        "provider": {PROVIDER: _provider(endpoint)},
        "enabled_providers": [PROVIDER],
        **_chosen(endpoint),
    }
    return Launch(environment={"OPENCODE_CONFIG_CONTENT": json.dumps(content)})


AGENT = Agent("opencode", "OpenCode", "opencode", _edits, _launch)
