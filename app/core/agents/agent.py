"""What an agent is to Headrace: where its configuration lies, and how it is started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from engine.errors import HeadraceError

PROVIDER = "headrace"
"""The name that agents list the server under."""

KEY_VARIABLE = "HEADRACE_API_KEY"
"""Holds the server's key for an agent that is started by `headrace agents run`."""


class AgentError(HeadraceError):
    """An agent cannot be set up, started or put back."""

    code = "agent"


@dataclass(frozen=True)
class Endpoint:
    """The server as an agent is told of it."""

    url: str
    """Without a slash at its end and without /v1."""
    model: str
    key: str = ""
    """Empty where the server wants none."""
    context_tokens: int = 0
    """0 where unknown."""

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"

    @property
    def some_key(self) -> str:
        """For clients that do not start without a key."""
        return self.key or "none"


@dataclass(frozen=True)
class ConfigEdit:
    """A file of an agent's configuration, and what setting it up makes of its text.

    `edit` takes "" where there is no file, and raises AgentError where it cannot keep all else.
    """

    path: Path
    edit: Callable[[str], str]


@dataclass(frozen=True)
class Launch:
    """What one start adds to an agent's own command; the person's files stay as they are."""

    arguments: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    """By name, in the folder that the launch was made for, which is private and short-lived."""


@dataclass(frozen=True)
class Agent:
    name: str
    title: str
    command: str
    """Its program on the PATH."""
    edits: Callable[[Endpoint], list[ConfigEdit]]
    launch: Callable[[Endpoint, Path], Launch]
