"""The agents as people start them, on a model that reads a file, changes it and is done."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.agents.installed import folder_of
from tests.server.speaking import HERMES, speaking

ASK = "Look into notes.txt, and put the word it holds into capital letters."


@dataclass(frozen=True)
class Case:
    """How one agent is started without a terminal, and what its tools are called."""

    arguments: list[str]
    tools: str
    """A text that is in every prompt with tools, and in no other."""
    read: Callable[[Path], dict[str, Any]]
    edit: Callable[[Path, str, str], dict[str, Any]]
    environment: dict[str, str] = field(default_factory=dict)


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def _patch(path: Path, old: str, new: str) -> dict[str, Any]:
    patch = f"*** Begin Patch\n*** Update File: {path.name}\n@@\n-{old}\n+{new}\n*** End Patch"
    return call("exec_command", {"cmd": f"apply_patch <<'EOF'\n{patch}\nEOF"})


CASES = {
    "claude": Case(
        arguments=["-p", ASK, "--allowedTools", "Read,Edit"],
        tools='"file_path"',
        read=lambda path: call("Read", {"file_path": str(path)}),
        edit=lambda path, old, new: call(
            "Edit", {"file_path": str(path), "old_string": old, "new_string": new}
        ),
    ),
    "codex": Case(
        # Its sandbox needs what a container does not give; it works in the test's own folder.
        arguments=[
            *("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
            ASK,
        ],
        tools='"exec_command"',
        read=lambda path: call("exec_command", {"cmd": f"cat {path.name}"}),
        edit=_patch,
    ),
    "opencode": Case(
        arguments=["run", ASK],
        tools='"filePath"',
        read=lambda path: call("read", {"filePath": str(path)}),
        edit=lambda path, old, new: call(
            "edit", {"filePath": str(path), "oldString": old, "newString": new}
        ),
    ),
    "pi": Case(
        arguments=["-p", ASK],
        tools='"edits"',
        read=lambda path: call("read", {"path": path.name}),
        edit=lambda path, old, new: call(
            "edit", {"path": path.name, "edits": [{"oldText": old, "newText": new}]}
        ),
        environment={"PI_OFFLINE": "1"},
    ),
}


def said(call: dict[str, Any]) -> str:
    return f"I go on.\n<tool_call>\n{json.dumps(call)}\n</tool_call>"


# The lightest one runs always, where it can be had.
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "pi" else pytest.mark.full) for name in CASES],
)
def test_an_agent_that_is_run_edits_a_file(name: str, tiny_model: Path, tmp_path: Path) -> None:
    person = Person(name, tmp_path)
    with person.server(tiny_model):
        person.watch(lambda: person.headrace("run", name, "--", *CASES[name].arguments))
    assert not list((tmp_path / "server" / "home").glob("agent*")), (
        "something of the launch is left"
    )


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", CASES)
def test_an_agent_that_is_set_up_edits_a_file(name: str, tiny_model: Path, tmp_path: Path) -> None:
    person = Person(name, tmp_path)
    with person.server(tiny_model):
        done = person.headrace("setup", name, "--yes")
        assert done.returncode == 0, done.stderr
        person.environment = {
            each: value for each, value in person.environment.items() if "API_KEY" not in each
        }
        person.watch(lambda: person.start([name, *CASES[name].arguments]))
        assert person.headrace("undo", name).returncode == 0


class Person:
    """Somebody with an agent, a file to be changed, and a server that wants a key."""

    def __init__(self, name: str, folder: Path) -> None:
        self.case = CASES[name]
        self.folder = folder
        self.word = f"w{uuid.uuid4().hex}"  # nobody knows it who has not read the file
        self.notes = folder / "work" / "notes.txt"
        self.notes.parent.mkdir()
        self.notes.write_text(f"first\n{self.word}\nlast\n")
        self.key = folder / "key"
        self.key.write_text(uuid.uuid4().hex)
        (folder / "home").mkdir()
        self.environment = environment(folder, folder_of(name)) | self.case.environment

    @contextlib.contextmanager
    def server(self, tiny_model: Path) -> Iterator[None]:
        """Its model reads the file, changes it, and is done."""
        word, case = self.word, self.case
        steps = [
            {"until": word, "says": said(case.read(self.notes))},
            {"until": word.upper(), "says": said(case.edit(self.notes, word, word.upper()))},
        ]
        folder = self.folder / "server"
        (folder / "prompts").mkdir(parents=True)
        script = {"model": str(folder / "speaker"), "tools": case.tools, "steps": steps}
        (folder / "script.json").write_text(json.dumps(script))
        command = [sys.executable, "-m", "tests.agents.reading_runtime", str(folder)]
        constants = {"engine.server.runtime_process": {"COMMAND": command}}
        options = ("--api-key-file", str(self.key))
        with speaking(tiny_model, folder, HERMES, *options, constants=constants):
            yield

    def headrace(self, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`headrace agents`, which finds the server by itself."""
        command = [sys.executable, "-m", "app.cli", "agents", verb]
        key = () if verb == "undo" else ("--api-key-file", str(self.key))
        return self.start([*command, *arguments[:1], *key, *arguments[1:]])

    def start(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        program = shutil.which(command[0], path=self.environment["PATH"])
        assert program is not None
        return subprocess.run(
            [program, *command[1:]],
            cwd=self.notes.parent,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
        )

    def watch(self, start: Callable[[], subprocess.CompletedProcess[str]]) -> None:
        done = start()
        shown = f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        assert self.notes.read_text() == f"first\n{self.word.upper()}\nlast\n", shown
        assert done.returncode == 0 and "Done." in done.stdout, shown
        *_, last = sorted((self.folder / "server" / "prompts").iterdir())
        prompt = last.read_text()
        assert self.word in prompt and self.word.upper() in prompt


def environment(folder: Path, binaries: Path) -> dict[str, str]:
    """Of a person with keys of services, whom the agent must not reach: outside is a dead end."""
    kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9")
    keys = dict.fromkeys(("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"), "sk-paid")
    return {
        **kept,
        **proxies,
        "NO_PROXY": "127.0.0.1",
        **keys,
        "PATH": os.pathsep.join([str(binaries), os.environ["PATH"]]),
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        "HOME": str(folder / "home"),
        "HEADRACE_HOME": str(folder / "server" / "home"),
    }
