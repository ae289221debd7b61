"""`headrace keys`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from engine import api_keys
from engine.api_keys import NAME_RULE
from engine.cli.values import given

SUMMARY = "make, list and revoke API keys"
DESCRIPTION = (
    "API keys for clients of every server of yours. As long as there is one, servers want a key. "
    "Running servers follow at once. The app and `headrace agents` have a key of their own."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(log_level="warning")
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    for name, run_verb, text in (
        ("create", _create, "make a key and show it, once"),
        ("list", _list, "the keys by name, when they were made and last used"),
        ("revoke", _revoke, "take a key no longer"),
    ):
        verb = verbs.add_parser(name, help=text, description=text, allow_abbrev=False)
        verb.set_defaults(run_verb=run_verb)
        if name != "list":
            verb.add_argument("name", type=given, metavar="NAME", help=NAME_RULE)


def run(options: argparse.Namespace) -> int:
    run_verb: Callable[[argparse.Namespace], int] = options.run_verb
    return run_verb(options)


def _create(options: argparse.Namespace) -> int:
    key = api_keys.create(options.name)
    # The key alone is what a script gets.
    print(key)
    print(
        f"Keep the key {options.name!r} now: it is not stored and cannot be shown again. Servers "
        "of yours want a key from now on, those that run too.",
        file=sys.stderr,
    )
    return 0


def _list(_options: argparse.Namespace) -> int:
    rows = [("NAME", "MADE", "LAST USED")]
    for key in api_keys.stored():
        used = key.last_used
        rows.append((key.name, _day(key.created), "never" if used is None else _day(used)))
    if len(rows) == 1:
        print("There are no keys.")
        return 0
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for name, made, used_at in rows:
        print(f"{name:<{widths[0]}}  {made:<{widths[1]}}  {used_at}")
    return 0


def _revoke(options: argparse.Namespace) -> int:
    left = api_keys.revoke(options.name)
    print(f"The key {options.name!r} is taken no longer, also by servers that run.")
    if not left:
        print("It was the last one: servers without --api-key want no key now.")
    return 0


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
