"""The engine's verbs, one file each for what a verb takes and what it starts."""

from __future__ import annotations

import argparse
import io
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

import engine
from engine.cli import bench, chat, keys, serve, verify
from engine.errors import HeadraceError, PortInUse

VERBS = {"serve": serve, "chat": chat, "bench": bench, "verify": verify, "keys": keys}
"""The module of each verb: its SUMMARY, DESCRIPTION, add_options and run."""
_TIME = "%H:%M:%S"
EXIT_ERROR, EXIT_USAGE, EXIT_PORT, EXIT_INTERRUPTED = 1, 2, 3, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb. Returns the exit code: 0, 1 typed error, 2 usage, 3 port in use, 130 Ctrl-C."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _print_anything()
    logged = False
    try:
        options = parser().parse_args(arguments)
        _start_logging(options.log_level)
        logged = bool(getattr(options, "owner_pid", 0))
        run: Callable[[argparse.Namespace], int] = options.run
        return run(options)
    except HeadraceError as error:
        # An owner keeps it in a log, where every line has its time.
        when = time.strftime(f"{_TIME} ") if logged else ""
        print(f"{when}error: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"{when}hint: {error.hint}", file=sys.stderr)
        return EXIT_PORT if isinstance(error, PortInUse) else EXIT_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            print(f"error: {error}", file=sys.stderr)
        # Whoever read the output has gone; Python must not complain about it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_ERROR


class Parser(argparse.ArgumentParser):
    """Says what is wrong and no more: the usage of a verb with many options would bury it."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"error: {message} (see {self.prog} --help)\n")


def parser() -> argparse.ArgumentParser:
    top = Parser(
        prog="headrace",
        description=engine.__doc__,
        epilog="`headrace VERB --help` tells what a verb takes. Try: headrace chat --model demo",
    )
    top.add_argument(
        "--version",
        action="version",
        version=f"headrace {engine.__version__}",
        help="print the version and end",
    )
    verbs = top.add_subparsers(title="verbs", required=True, metavar="VERB")
    for name, verb in VERBS.items():
        # An abbreviation of --api-key would be written down with the key.
        own = verbs.add_parser(
            name, allow_abbrev=False, help=verb.SUMMARY, description=verb.DESCRIPTION
        )
        verb.add_options(own)
        own.set_defaults(run=verb.run)
    return top


def _print_anything() -> None:
    """A terminal or pipe of few characters gets `?` for the others, rather than end the program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _start_logging(level: str) -> None:
    logging.basicConfig(
        level=level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        datefmt=_TIME,
    )
    # uvicorn tells of its own life, of which the server's log has said the same.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
