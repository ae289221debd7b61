"""The commands: every option explains itself, blanks are refused, what texts suggest runs."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest

import app.cli
import dev
from app.core import fit_command, startup
from app.core.agents import command as agents
from app.core.downloads import command as download
from engine import cli
from engine.cli.values import host
from tests.project.checkout import ROOT, tracked_files


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A command's parser and those of its verbs."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                yield from parsers(verb)


COMMANDS = [
    each
    for own in (app.cli, agents, download, fit_command, cli, dev)
    for each in parsers(own.parser())
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: str(command.prog))
def test_every_option_and_verb_explains_itself(command: argparse.ArgumentParser) -> None:
    silent = [
        action.option_strings or action.dest
        for action in command._actions
        if not action.help and not isinstance(action, argparse._SubParsersAction)
    ]
    assert silent == []
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            told = {choice.dest for choice in action._choices_actions if choice.help}
            assert told == set(action.choices)


BLANK = ["", " ", "\t\n"]


@pytest.mark.parametrize("blank", BLANK, ids=repr)
@pytest.mark.parametrize(
    ("verb", "option"),
    [
        ("serve", "--model"),
        ("serve", "--host"),
        ("serve", "--api-key"),
        ("serve", "--api-key-file"),
        ("serve", "--allow-host"),
        ("serve", "--allow-origin"),
        ("chat", "--model"),
        ("chat", "--prompt"),
        ("bench decode", "--model"),
        ("bench decode", "--json"),
    ],
)
def test_a_blank_value_is_refused_as_a_mistake_of_usage(
    capsys: pytest.CaptureFixture[str], verb: str, option: str, blank: str
) -> None:
    """An unset variable of a script gives one; the working folder is no model that was meant."""
    model = [] if option == "--model" else ["--model", "demo"]
    with pytest.raises(SystemExit) as raised:
        cli.main([*verb.split(), *model, option, blank])
    assert raised.value.code == 2
    assert option in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "end"),
    [
        (["serve", "--model", "demo", "--port", "no"], "(see headrace serve --help)"),
        (["chat"], "(see headrace chat --help)"),
        (["--hiden"], "(see headrace --help)"),
        (
            ["nonsense"],
            "serve, chat, bench, verify, keys, agents, download, fit (see headrace --help)",
        ),
        (["serve", "--model", "demo", "--allow-host", "a b"], "(see headrace serve --help)"),
    ],
)
def test_a_mistake_of_usage_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], end: str
) -> None:
    with pytest.raises(SystemExit) as raised:
        app.cli.main(arguments)
    assert raised.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and line.endswith(end)


@pytest.mark.parametrize(
    ("text", "name"),
    [("box", "box"), ("a-b.example", "a-b.example"), ("box.", "box"), ("10.0.0.7", "10.0.0.7")],
)
def test_a_host_name_is_taken(text: str, name: str) -> None:
    assert host(text) == name


@pytest.mark.parametrize("text", ["a b", "http://box", "box:80", "a/b", "*", "a..b", "bücher", "."])
def test_what_is_no_host_name_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="host name"):
        host(text)


@pytest.mark.parametrize("blank", BLANK, ids=repr)
@pytest.mark.parametrize("option", ["--url", "--model", "--api-key-file"])
def test_a_blank_value_for_an_agent_is_refused(
    capsys: pytest.CaptureFixture[str], option: str, blank: str
) -> None:
    with pytest.raises(SystemExit) as raised:
        agents.main(["show", "pi", option, blank])
    assert raised.value.code == 2
    assert option in capsys.readouterr().err.splitlines()[-1]


# --- what texts suggest ---------------------------------------------------------------------------

_SUGGESTED = re.compile(
    r"((?:\.venv/bin/)?headrace (?:serve|chat|bench) -[^`\"'\n;|()]*"
    r"|python3 (?:dev\.py|benchmarks/\w+\.py)[^`\"'\n;|()]*)"
)


def suggested() -> set[str]:
    """The commands in pages, messages and docstrings, without what is said about them."""
    return {
        re.split(r"\s+#|\s{2,}|\\n", match[1])[0].rstrip(" .,:")
        for path in tracked_files()
        if path.suffix in (".py", ".md") and "tests" not in path.parts
        for match in _SUGGESTED.finditer(path.read_text(encoding="utf-8"))
    }


def test_every_command_that_a_text_suggests_is_understood() -> None:
    found = suggested()
    assert {"python3 dev.py run", ".venv/bin/headrace serve --model demo"} <= found
    for command in found:
        program, name, *rest = shlex.split(command)
        if "--help" in rest:
            continue  # the next test's, of every verb
        if program == "python3" and name != "dev.py":
            assert (ROOT / name).is_file(), command
        elif program == "python3":
            dev.parser().parse_known_args(rest)
        else:
            cli.parser().parse_args([name, *rest])


def test_the_app_s_command_and_the_engine_s_say_the_same_of_each_verb() -> None:
    verbs = {name: verb.SUMMARY for name, verb in cli.VERBS.items()}
    for help_page, expected in (
        (app.cli.parser().format_help(), verbs | app.cli.OWN_VERBS),
        (cli.parser().format_help(), verbs),
    ):
        told = re.findall(r"^ +(\w+)  +(.+)$", help_page.partition("verbs:\n")[2], re.MULTILINE)
        assert dict(told) == expected


@pytest.mark.parametrize("verb", ["serve", "chat", "agents", "bench", "verify", "download", "fit"])
def test_every_verb_has_a_page_of_help(verb: str) -> None:
    command = [sys.executable, "-m", "app.cli", verb, "--help"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    assert f"headrace {verb}" in said.stdout


def test_the_command_for_no_window_is_there_to_be_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no `headrace` is on the path, as in a checkout."""
    monkeypatch.setenv("PATH", "")
    *program, verb, model, demo = shlex.split(startup.without_window().partition(": ")[2])
    assert [verb, model, demo] == ["serve", "--model", "demo"]
    said = subprocess.run([*program, "--version"], capture_output=True, text=True, check=False)
    assert said.stdout.startswith("headrace "), said.stderr
