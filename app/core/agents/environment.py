"""What an agent sees of the environment: nothing that another service would take as payment."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

_KEYS = ("_API_KEY", "_AUTH_TOKEN", "_OAUTH_TOKEN")
"""Endings of the names of keys."""

_SERVICES = (
    "ANTHROPIC_",
    "AWS_",  # Bedrock takes what every other tool of AWS takes
    "AZURE_",
    "CLAUDE_CODE_USE_",
    "CLOUDFLARE_",
    "COHERE_",
    "COPILOT_",
    "DATABRICKS_",
    "GEMINI_",
    "GOOGLE_",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "HUGGINGFACE_",
    "MISTRAL_",
    "OPENAI_",
    "OPENCODE_CONFIG",  # could name another provider
    "OPENROUTER_",
    "REPLICATE_",
    "SNOWFLAKE_",
    "VERTEX",
)
"""Beginnings of names that lead to a model service, or are logins to one."""


def leads_elsewhere(name: str) -> bool:
    """Whether a variable of this name is a key or an address of a model service."""
    upper = name.upper()
    return upper.endswith(_KEYS) or upper.startswith(_SERVICES)


def for_agent(environment: Mapping[str, str], own: Mapping[str, str], url: str) -> dict[str, str]:
    """The environment without other services, with the launch's `own` variables. No proxy comes
    between the agent and the server at `url`.
    """
    kept = {name: value for name, value in environment.items() if not leads_elsewhere(name)}
    # Where both spellings differ, programs do not agree which one counts.
    spellings = [kept.pop(name, "") for name in ("no_proxy", "NO_PROXY")]
    direct = {host: None for text in spellings for host in text.split(",") if host}
    hosts = ",".join({**direct, "127.0.0.1": None, "localhost": None, _host(url): None})
    return {**kept, "no_proxy": hosts, "NO_PROXY": hosts, **own}


def _host(url: str) -> str:
    return urlsplit(url).hostname or "localhost"
