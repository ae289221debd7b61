"""Agents that are set up by hand: the text to enter, and where."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from app.core.agents.agent import KEY_VARIABLE, Endpoint


@dataclass(frozen=True)
class Snippet:
    name: str
    title: str
    where: str
    """What to do with the text."""
    text: Callable[[Endpoint], str]
    """Without the server's key, which the person enters."""


def _context(endpoint: Endpoint) -> int:
    return endpoint.context_tokens or 32_768


def _key(endpoint: Endpoint) -> str:
    return "YOUR-KEY" if endpoint.key else "none"


def _cline(endpoint: Endpoint) -> str:
    return (
        "API Provider:    OpenAI Compatible\n"
        f"Base URL:        {endpoint.openai_url}\n"
        f"API Key:         {_key(endpoint)}\n"
        f"Model ID:        {endpoint.model}\n"
        f"Context Window:  {_context(endpoint)}\n"
    )


def _continue(endpoint: Endpoint) -> str:
    name = json.dumps(endpoint.model, ensure_ascii=False)
    return (
        "name: Headrace\n"
        "version: 1.0.0\n"
        "schema: v1\n"
        "models:\n"
        "  - name: Headrace\n"
        "    provider: openai\n"
        f"    model: {name}\n"
        f"    apiBase: {endpoint.openai_url}\n"
        f"    apiKey: {_key(endpoint)}\n"
        "    roles: [chat, edit, apply]\n"
        "    capabilities: [tool_use]\n"
    )


def _zed(endpoint: Endpoint) -> str:
    model = {
        "name": endpoint.model,
        "display_name": endpoint.model,
        "max_tokens": _context(endpoint),
        "capabilities": {"tools": True, "images": False},
    }
    provider = {"Headrace": {"api_url": endpoint.openai_url, "available_models": [model]}}
    settings = {
        "language_models": {"openai_compatible": provider},
        "agent": {"default_model": {"provider": "Headrace", "model": endpoint.model}},
    }
    return json.dumps(settings, indent=2, ensure_ascii=False) + "\n"


def _aider(endpoint: Endpoint) -> str:
    model = json.dumps(f"openai/{endpoint.model}", ensure_ascii=False)
    return (
        f"openai-api-base: {endpoint.openai_url}\n"
        f"openai-api-key: {_key(endpoint)}\n"
        f"model: {model}\n"
        f"weak-model: {model}\n"
    )


SNIPPETS = (
    Snippet("cline", "Cline", "Enter in the settings of Cline:", _cline),
    Snippet("continue", "Continue", "Enter in ~/.continue/config.yaml:", _continue),
    Snippet(
        "zed",
        "Zed",
        "Enter in Zed's settings.json. The key goes into the agent panel's settings, or into the "
        f"variable {KEY_VARIABLE}:",
        _zed,
    ),
    Snippet("aider", "Aider", "Enter in ~/.aider.conf.yml:", _aider),
)
