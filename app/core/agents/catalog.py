"""The agents that Headrace knows. A further one is a module like these, and a line here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from app.core.agents import claude_code, codex, environment, opencode, pi
from app.core.agents.agent import Agent

AGENTS: tuple[Agent, ...] = (claude_code.AGENT, codex.AGENT, opencode.AGENT, pi.AGENT)

_VERSION = re.compile(r"\d+\.\d+[\w.+-]*")
_PATIENCE_S = 20.0


def program(agent: Agent) -> str | None:
    """The path of the agent's program; None where it is not installed."""
    return shutil.which(agent.command)


def version(agent: Agent) -> str | None:
    """None where it is not installed, "" where it does not say."""
    path = program(agent)
    if path is None:
        return None
    try:
        said = subprocess.run(
            [path, "--version"],
            env=environment.for_agent(os.environ, {}, ""),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PATIENCE_S,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = _VERSION.search(said.decode(errors="replace"))
    return found[0] if found else ""
