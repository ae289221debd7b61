"""Codex: a provider of its own in config.toml, reached by the Responses API."""

from __future__ import annotations

import os
from pathlib import Path

from app.core.agents import toml_text
from app.core.agents.agent import KEY_VARIABLE, PROVIDER, Agent, ConfigEdit, Endpoint, Launch

_TABLE = ("model_providers", PROVIDER)


def _keys(endpoint: Endpoint) -> dict[str, toml_text.Plain]:
    keys: dict[str, toml_text.Plain] = {"model": endpoint.model, "model_provider": PROVIDER}
    if endpoint.context_tokens:
        keys["model_context_window"] = endpoint.context_tokens
    return keys


def _provider(endpoint: Endpoint) -> dict[str, toml_text.Plain]:
    return {"name": "Headrace", "base_url": endpoint.openai_url, "wire_api": "responses"}


def _edits(endpoint: Endpoint) -> list[ConfigEdit]:
    def edit(text: str) -> str:
        key = {"experimental_bearer_token": endpoint.key} if endpoint.key else {}
        return toml_text.put(text, _keys(endpoint), _TABLE, {**_provider(endpoint), **key})

    folder = os.environ.get("CODEX_HOME")
    return [ConfigEdit((Path(folder) if folder else Path.home() / ".codex") / "config.toml", edit)]


def _launch(endpoint: Endpoint, _folder: Path) -> Launch:
    # The key is named and not given: every user can read a command line.
    provider = {**_provider(endpoint), "env_key": KEY_VARIABLE}
    given = _keys(endpoint) | {
        f"{'.'.join(_TABLE)}.{name}": each for name, each in provider.items()
    }
    pairs = [("-c", f"{name}={toml_text.written(value)}") for name, value in given.items()]
    return Launch(
        arguments=[word for pair in pairs for word in pair],
        environment={KEY_VARIABLE: endpoint.some_key},
    )


AGENT = Agent("codex", "Codex", "codex", _edits, _launch)
