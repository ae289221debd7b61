"""`headrace agents`: which agents are there, and pointing one at this machine's server."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from app.core import settings
from app.core.agents import catalog, config_file, environment, server, set_up
from app.core.agents.agent import Agent, AgentError, Endpoint
from app.core.agents.snippets import SNIPPETS, Snippet
from engine import api_keys, paths
from engine.errors import HeadraceError

EXIT_ERROR, EXIT_INTERRUPTED = 1, 130

_DESCRIPTION = "Points coding agents at this machine's Headrace server, and back."
_EPILOG = """\
Example: headrace agents run codex            this once, nothing is written
         headrace agents setup codex          from now on
         headrace agents undo codex           as it was before
"""


def main(argv: Sequence[str]) -> int:
    """Returns the exit code: 0, 1 typed error, 2 usage, 130 Ctrl-C; of `run`, the agent's own."""
    own: list[str] = list(argv)
    rest: list[str] = []
    if own[:1] == ["run"]:
        # What follows the name's own options is the agent's, whatever it looks like.
        own, rest = _split(own)
    options = parser().parse_args(own)
    options.rest = rest
    try:
        run: Callable[[argparse.Namespace], int] = options.run
        return run(options)
    except HeadraceError as error:
        print(f"error: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return EXIT_ERROR


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="headrace agents",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.set_defaults(run=_list)
    verbs = top.add_subparsers(title="verbs", metavar="VERB")
    listed = verbs.add_parser("list", help="the agents, and which are set up (the default)")
    listed.set_defaults(run=_list)
    for name, run, text in (
        ("show", _show, "show what setting up would change, or what to enter by hand"),
        ("setup", _setup, "change the agent's configuration; what was there is kept"),
        ("run", _run, "start the agent on a running server; writes no configuration"),
        ("undo", _undo, "put the agent's configuration back, byte for byte"),
    ):
        verb = verbs.add_parser(name, help=text, description=text, allow_abbrev=False)
        names = [*(agent.name for agent in catalog.AGENTS)]
        names += [snippet.name for snippet in SNIPPETS] if name == "show" else []
        verb.add_argument("name", choices=names, metavar="NAME", help=", ".join(names))
        verb.set_defaults(run=run)
        if name == "undo":
            verb.add_argument("--force", action="store_true", help="also if it was changed since")
            continue
        verb.add_argument("--url", type=_given, help="the server, if it is not the one that runs")
        verb.add_argument("--model", type=_given, metavar="M", help="default: the one it serves")
        verb.add_argument(
            "--api-key-file",
            type=_given,
            metavar="PATH",
            help="default: that of this PC's servers, or of the settings",
        )
        if name == "setup":
            verb.add_argument("--yes", action="store_true", help="do not ask")
        if name == "run":
            verb.usage = f"{verb.prog} NAME [--url URL] [--model M] [-- ARGUMENT ...]"
    return top


def _given(text: str) -> str:
    """A blank is what an unset variable of a script gives."""
    if not text.strip():
        raise argparse.ArgumentTypeError("nothing is given: the text is empty")
    return text


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in argv:
        return argv, []
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


def _agent(options: argparse.Namespace) -> Agent:
    return next(agent for agent in catalog.AGENTS if agent.name == options.name)


def _list(_options: argparse.Namespace) -> int:
    rows = [("NAME", "AGENT", "INSTALLED", "SET UP")]
    for agent in catalog.AGENTS:
        found = catalog.version(agent)
        installed = "no" if found is None else found or "yes"
        record = set_up.record(agent.name)
        state = set_up.state(agent.name)
        words = "no" if record is None else f"{record.model} at {record.url}"
        rows.append(
            (agent.name, agent.title, installed, words + " (changed since)" * (state == "changed"))
        )
    rows += [(each.name, each.title, "-", "by hand: headrace agents show") for each in SNIPPETS]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for *cells, last in rows:
        padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
        print("  ".join([*padded, last]))
    return 0


def _endpoint(options: argparse.Namespace, find: Callable[..., Endpoint]) -> Endpoint:
    key = server.read_key(Path(options.api_key_file)) if options.api_key_file else ""
    return find(settings.load(), options.url or "", options.model or "", key)


def _show(options: argparse.Namespace) -> int:
    endpoint = _endpoint(options, server.described)
    snippet = next((each for each in SNIPPETS if each.name == options.name), None)
    if snippet is not None:
        # By hand one enters a key of one's own, where any is wanted.
        wanted = options.api_key_file or settings.load().api_key or api_keys.stored()
        return _show_snippet(snippet, endpoint if wanted else replace(endpoint, key=""))
    agent = _agent(options)
    planned = set_up.changes(agent.name, agent.edits(endpoint), endpoint)
    print("".join(change.diff(endpoint) for change in planned), end="")
    return 0


def _show_snippet(snippet: Snippet, endpoint: Endpoint) -> int:
    print(f"{snippet.where}\n\n{snippet.text(endpoint)}", end="")
    return 0


def _setup(options: argparse.Namespace) -> int:
    agent = _agent(options)
    endpoint = _endpoint(options, server.described)
    planned = set_up.changes(agent.name, agent.edits(endpoint), endpoint)
    if all(change.after == config_file.read(change.target)[0] for change in planned):
        print(f"{agent.title} is set up for {endpoint.model} at {endpoint.url} already.")
        return 0
    print("".join(change.diff(endpoint) for change in planned), end="")
    if not options.yes and not _agreed():
        print("Nothing was written.")
        return EXIT_ERROR
    kept = set_up.apply(agent.name, planned, endpoint)
    print(f"{agent.title} uses {endpoint.model} at {endpoint.url}. What was there before: {kept}")
    print(f"Back again: headrace agents undo {agent.name}")
    return 0


def _agreed() -> bool:
    if not sys.stdin.isatty():
        raise AgentError("Nothing was written: nobody can be asked here.", hint="Add --yes.")
    return input("Write this? [y/N] ").strip().lower() in ("y", "yes")


def _undo(options: argparse.Namespace) -> int:
    for path in set_up.undo(options.name, force=options.force):
        print(f"{path} is as it was before.")
    return 0


def _run(options: argparse.Namespace) -> int:
    agent = _agent(options)
    program = catalog.program(agent)
    if program is None:
        raise AgentError(f"{agent.title} is not installed: there is no program `{agent.command}`.")
    endpoint = _endpoint(options, server.running)
    with _private_folder() as folder:
        launch = agent.launch(endpoint, folder)
        for name, text in launch.files.items():
            settings.write_private(folder / name, text.encode())
        child = environment.for_agent(os.environ, launch.environment, endpoint.url)
        command = [program, *launch.arguments, *options.rest]
        with subprocess.Popen(command, env=child) as process, _signals_are_the_child_s():
            return process.wait()


@contextlib.contextmanager
def _private_folder() -> Iterator[Path]:
    paths.home().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=paths.home(), prefix="agent-") as name:
        yield Path(name)


@contextlib.contextmanager
def _signals_are_the_child_s() -> Iterator[None]:
    """Ctrl-C reaches the agent by the terminal, and is for it to act on."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
