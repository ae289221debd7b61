"""pi: a provider of its own in models.json, chosen in settings.json."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from app.core.agents import jsonc
from app.core.agents.agent import (
    KEY_VARIABLE,
    PROVIDER,
    Agent,
    AgentError,
    ConfigEdit,
    Endpoint,
    Launch,
)


def _provider(endpoint: Endpoint) -> dict[str, Any]:
    # Costs and kinds of input are optional in the file, but not where an extension says them.
    cost = dict.fromkeys(("input", "output", "cacheRead", "cacheWrite"), 0)
    context = endpoint.context_tokens or 128_000
    model = {
        "id": endpoint.model,
        "name": endpoint.model,
        "reasoning": False,
        "input": ["text"],
        "contextWindow": context,
        "maxTokens": min(context // 4, 32_768),
        "cost": cost,
    }
    return {"baseUrl": endpoint.openai_url, "api": "openai-completions", "models": [model]}


def _edits(endpoint: Endpoint) -> list[ConfigEdit]:
    def models(text: str) -> str:
        if endpoint.key.startswith(("!", "$")):
            raise AgentError("pi reads a key that begins with ! or $ as a command or a variable.")
        provider = {**_provider(endpoint), "apiKey": endpoint.some_key}
        return jsonc.put(text, ("providers", PROVIDER), provider)

    def chosen(text: str) -> str:
        text = jsonc.put(text, ("defaultProvider",), PROVIDER)
        return jsonc.put(text, ("defaultModel",), endpoint.model)

    folder = os.environ.get("PI_CODING_AGENT_DIR")
    base = Path(folder).expanduser() if folder else Path.home() / ".pi" / "agent"
    return [ConfigEdit(base / "models.json", models), ConfigEdit(base / "settings.json", chosen)]


def _launch(endpoint: Endpoint, folder: Path) -> Launch:
    provider = json.dumps(_provider(endpoint))
    extension = (
        f"export default (pi) => pi.registerProvider({json.dumps(PROVIDER)},\n"
        f"  {{ ...{provider}, apiKey: process.env.{KEY_VARIABLE} }});\n"
    )
    return Launch(
        arguments=[
            *("--extension", str(folder / "headrace.ts")),
            *("--provider", PROVIDER, "--model", endpoint.model),
        ],
        environment={KEY_VARIABLE: endpoint.some_key},
        files={"headrace.ts": extension},
    )


AGENT = Agent("pi", "pi", "pi", _edits, _launch)
