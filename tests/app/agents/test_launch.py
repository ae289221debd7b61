"""Starting an agent: what it gets, and what it does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from app.core.agents import catalog, environment
from app.core.agents.agent import Agent, Endpoint
from app.core.agents.snippets import SNIPPETS, Snippet
from engine import api_keys
from tests.server.running import running

KEYED = Endpoint("http://127.0.0.1:11711", "demo", key="secret", context_tokens=4096)
every_agent = pytest.mark.parametrize("agent", catalog.AGENTS, ids=lambda agent: agent.name)

PAID = {
    "ANTHROPIC_API_KEY": "sk",
    "ANTHROPIC_BASE_URL": "https://elsewhere",
    "anthropic_auth_token": "sk",
    "OPENAI_API_KEY": "sk",
    "OPENAI_BASE_URL": "https://elsewhere",
    "CLAUDE_CODE_OAUTH_TOKEN": "sk",
    "CLAUDE_CODE_USE_BEDROCK": "1",
    "AWS_SECRET_ACCESS_KEY": "sk",
    "AWS_BEARER_TOKEN_BEDROCK": "sk",
    "GOOGLE_APPLICATION_CREDENTIALS": "/key.json",
    "GEMINI_API_KEY": "sk",
    "AZURE_OPENAI_API_KEY": "sk",
    "OPENROUTER_API_KEY": "sk",
    "A_SERVICE_OF_TOMORROW_API_KEY": "sk",
    "HF_TOKEN": "sk",
    "OPENCODE_CONFIG_CONTENT": "{}",
}
HARMLESS = {"PATH": "/bin", "GITHUB_TOKEN": "git's", "EDITOR": "vi", "HTTPS_PROXY": "http://p"}


@every_agent
def test_no_other_service_is_left(agent: Agent, tmp_path: Path) -> None:
    launch = agent.launch(KEYED, tmp_path)
    child = environment.for_agent(PAID | HARMLESS, launch.environment, KEYED.url)
    assert HARMLESS.items() <= child.items()
    assert {name for name in PAID if name in child} <= set(launch.environment)
    assert not {"sk", "https://elsewhere", "1", "/key.json"} & {child.get(name) for name in PAID}


@every_agent
def test_the_key_is_on_no_command_line(agent: Agent, tmp_path: Path) -> None:
    launch = agent.launch(KEYED, tmp_path)
    assert "secret" not in " ".join(launch.arguments)
    assert "secret" in "".join(launch.environment.values())
    for name in launch.files:
        assert str(tmp_path / name) in launch.arguments


def test_the_server_is_reached_directly() -> None:
    for before in ({}, {"no_proxy": "a.example"}, {"NO_PROXY": "a.example", "no_proxy": "b"}):
        child = environment.for_agent(before, {}, "http://192.168.1.7:8000")
        assert child["no_proxy"] == child["NO_PROXY"]
        hosts = child["no_proxy"].split(",")
        assert {*before.values(), "127.0.0.1", "localhost", "192.168.1.7"} == set(hosts)


def test_codex_is_told_in_toml(tmp_path: Path) -> None:
    (codex,) = (agent for agent in catalog.AGENTS if agent.name == "codex")
    odd = Endpoint("http://[::1]:9", 'a "model"\\x', key="secret")
    arguments = codex.launch(odd, tmp_path).arguments
    assert set(arguments[::2]) == {"-c"}
    given = tomllib.loads("\n".join(arguments[1::2]))
    assert given["model"] == odd.model and given["model_provider"] == "headrace"
    assert given["model_providers"]["headrace"]["base_url"] == "http://[::1]:9/v1"


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda snippet: snippet.name)
def test_snippets_can_be_read_and_have_no_key(snippet: Snippet) -> None:
    odd = Endpoint(KEYED.url, 'my: "model" # 1', key="secret", context_tokens=4096)
    text = snippet.text(odd)
    assert "secret" not in text and f"{odd.url}/v1" in text
    if snippet.name == "zed":
        (provider,) = json.loads(text)["language_models"]["openai_compatible"].values()
        assert provider["available_models"][0]["name"] == odd.model
    elif snippet.name == "continue":
        assert yaml.safe_load(text)["models"][0]["model"] == odd.model
    elif snippet.name == "aider":
        assert yaml.safe_load(text)["model"] == f"openai/{odd.model}"
    else:
        assert odd.model in text


def headrace(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "app.cli", "agents", *arguments],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


SHOWN = """\
import json, os, sys
print(json.dumps([sys.argv[1:], dict(os.environ), [open(a).read() for a in sys.argv if
    os.path.exists(a) and a.endswith("settings.json")]]))
sys.exit(7)
"""


@pytest.mark.skipif(os.name == "nt", reason="a script is no program there")
def test_a_run_hands_everything_over(tiny_server: str, person: Path, home: Path) -> None:
    binaries = person / "bin"
    binaries.mkdir()
    program, script = binaries / "claude", binaries / "shown.py"
    script.write_text(SHOWN)
    # By a shell: the first line of a script cannot name an interpreter with a space in its path.
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
    program.chmod(0o755)
    search = os.pathsep.join([str(binaries), os.environ["PATH"]])
    started = ("run", "claude", "--url", tiny_server + "/v1/", "--", "-p", "--yes", "--", "x")
    done = headrace(*started, PATH=search, ANTHROPIC_API_KEY="sk", HTTP_PROXY="http://127.0.0.1:9")
    assert done.returncode == 7, done.stderr
    arguments, child, ((given),) = json.loads(done.stdout)
    assert arguments[2:] == ["-p", "--yes", "--", "x"]
    assert "ANTHROPIC_API_KEY" not in child and child["ANTHROPIC_MODEL"] == "tiny"
    assert json.loads(given)["env"]["ANTHROPIC_BASE_URL"] == tiny_server
    assert urlsplit(tiny_server).hostname in child["NO_PROXY"]
    assert list(home.iterdir()) == [] and not (person / ".claude").exists()


def test_without_a_server_nothing_starts(person: Path) -> None:
    binaries = person / "bin"
    binaries.mkdir()
    suffix = ".bat" if os.name == "nt" else ""
    program = binaries / f"pi{suffix}"
    program.write_text("")
    program.chmod(0o755)
    done = headrace("run", "pi", PATH=str(binaries))
    assert done.returncode == 1 and "No Headrace server runs" in done.stderr
    done = headrace("run", "pi", "--url", "http://127.0.0.1:9", PATH=str(binaries))
    assert done.returncode == 1 and "No server answers at http://127.0.0.1:9" in done.stderr
    done = headrace("run", "codex", PATH=str(binaries))
    assert done.returncode == 1 and "Codex is not installed" in done.stderr


def test_set_up_shown_and_undone(tiny_server: str, person: Path) -> None:
    shown = headrace("show", "opencode", "--url", tiny_server)
    assert shown.returncode == 0 and "+" in shown.stdout and not list(person.iterdir())
    asked = headrace("setup", "opencode", "--url", tiny_server)
    assert asked.returncode == 1 and "--yes" in asked.stderr and not list(person.iterdir())
    done = headrace("setup", "opencode", "--url", tiny_server, "--yes")
    assert done.returncode == 0 and done.stdout.startswith(shown.stdout)
    again = headrace("setup", "opencode", "--url", tiny_server, "--yes")
    assert again.returncode == 0 and "already" in again.stdout
    listed = headrace("list", PATH="").stdout
    assert f"tiny at {tiny_server}" in listed and "aider" in listed
    config = person / ".config" / "opencode" / "opencode.json"
    limit = json.loads(config.read_text())["provider"]["headrace"]["models"]["tiny"]["limit"]
    assert limit == {"context": 4096, "output": 1024}
    assert headrace("undo", "opencode").returncode == 0
    assert not list(person.iterdir())


def test_what_the_server_says_is_told(tiny_server: str, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("wrong\n")
    done = headrace("show", "pi", "--url", tiny_server, "--api-key-file", str(key))
    assert done.returncode == 1 and "wants another API key" in done.stderr
    done = headrace("show", "pi", "--url", f"{tiny_server}/elsewhere")
    assert done.returncode == 1 and "404" in done.stderr
    done = headrace("show", "pi", "--url", "127.0.0.1:8000")
    assert done.returncode == 1 and "is no address" in done.stderr
    done = headrace("show", "pi", "--api-key-file", str(tmp_path / "none"))
    assert done.returncode == 1 and "cannot be read" in done.stderr


def test_agents_keep_their_access_when_keys_are_made(
    tiny_server: str, person: Path, home: Path
) -> None:
    """What they were given before; and another's server is not shown what opens this user's."""
    with running("demo", home, "--device", "cpu", ready=False) as server:
        shown = headrace("show", "cline").stdout
        assert "none" in shown and "YOUR-KEY" not in shown
        assert headrace("setup", "pi", "--yes").returncode == 0
        api_keys.create("mine")
        provider = json.loads((person / ".pi" / "agent" / "models.json").read_text())
        key = provider["providers"]["headrace"]["apiKey"]
        assert server.http.get("/v1/models").status_code == 401
        headers = {"Authorization": f"Bearer {key}"}
        assert server.http.get("/v1/models", headers=headers).status_code == 200
        assert "YOUR-KEY" in headrace("show", "cline").stdout
        assert headrace("undo", "pi").returncode == 0
        done = headrace("show", "pi", "--url", tiny_server)
        assert done.returncode == 0 and '"apiKey": "none"' in done.stdout
        assert key not in done.stdout and key not in shown
