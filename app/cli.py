"""The `headrace` command: it opens the app, does what is the app's, or else is the engine's CLI."""

from __future__ import annotations

import argparse
import logging
import logging.handlers
import sys

import engine
from app.core import startup
from engine import cli, paths

_EPILOG = """\
verbs:
{verbs}

`headrace VERB --help` tells what a verb takes. Example: headrace chat --model demo
"""
OWN_VERBS = {
    "agents": "point coding agents at the server, and back",
    "download": "fetch a model from the hub, checked to the byte",
    "fit": "whether a model fits this PC, and how fast it would be",
}
_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    if argv and not argv[0].startswith("-"):
        if argv[0] == "agents":
            from app.core.agents import command

            return command.main(argv[1:])
        if argv[0] == "download":
            from app.core.downloads import command as download

            return download.main(argv[1:])
        if argv[0] == "fit":
            from app.core import fit_command

            return fit_command.main(argv[1:])
        if argv[0] not in cli.VERBS:
            known = ", ".join((*cli.VERBS, *OWN_VERBS))
            parser().error(f"there is no verb {argv[0]!r}; the verbs are {known}")
        # The other verbs are the engine's, with their own parser and help.
        return cli.main(argv)
    arguments = parser().parse_args(argv)
    if problem := startup.problem():
        print(problem, file=sys.stderr)
        return 1
    homeless = startup.home_problem()
    if not homeless:
        _log_to_file()
    try:
        from app.ui import application  # Qt is imported only from here on
    except ImportError as error:
        print(
            f"The window cannot open, because Qt does not load: {error}\n"
            f"{startup.without_window()}",
            file=sys.stderr,
        )
        return 1
    if homeless:
        return application.refuse(homeless)
    return application.run(hidden=arguments.hidden)


def parser() -> argparse.ArgumentParser:
    summaries = {name: verb.SUMMARY for name, verb in cli.VERBS.items()} | OWN_VERBS
    verbs = "\n".join(f"  {name:<8}  {summary}" for name, summary in summaries.items())
    from engine.cli import Parser

    own = Parser(
        prog="headrace",
        usage="headrace [-h] [--hidden] [--version]\n       headrace VERB ...",
        description="Opens Headrace. With a verb, does the engine's work without a window.",
        epilog=_EPILOG.format(verbs=verbs),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    own.add_argument("--hidden", action="store_true", help="start in the tray")
    version = getattr(engine, "__version__", "")
    own.add_argument(
        "--version",
        action="version",
        version=f"headrace {version}",
        help="print the version and end",
    )
    return own


def _log_to_file() -> None:
    """The app's own log, beside the server's; warnings also go to the terminal."""
    terminal = logging.StreamHandler()
    terminal.setLevel(logging.WARNING)
    handlers: list[logging.Handler] = [terminal]
    try:
        paths.log_folder().mkdir(parents=True, exist_ok=True)
        handlers.append(
            logging.handlers.RotatingFileHandler(
                paths.log_folder() / "app.log", maxBytes=1 << 20, backupCount=2, encoding="utf-8"
            )
        )
    except OSError as error:
        print(f"headrace: no log is kept: {error}", file=sys.stderr)
    logging.basicConfig(level=logging.INFO, format=_LOG_FORMAT, handlers=handlers)


if __name__ == "__main__":
    sys.exit(main())
