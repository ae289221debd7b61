"""`headrace serve`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from engine.chat.parsers.families import FAMILIES
from engine.cli.engine_options import add_engine_options, engine_options
from engine.cli.values import given, host, key, number, origin, whole
from engine.errors import InvalidRequest
from engine.options import API_KEY_RULE, DEFAULT_PORT, is_api_key

SUMMARY = "serve a model to OpenAI and Anthropic clients"
DESCRIPTION = (
    "Serve a model over HTTP. A model that does not load ends the program with its reason; under "
    "--owner-pid the server stays and tells the reason at /health."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_engine_options(parser, log_level="info")
    add = parser.add_argument
    add("--host", type=given, default="127.0.0.1", help="address to listen on (%(default)s)")
    add("--port", type=whole(0, 65535), default=DEFAULT_PORT, help="0 takes any (%(default)s)")
    secret = parser.add_mutually_exclusive_group()
    secret.add_argument(
        "--api-key",
        type=key,
        metavar="KEY",
        help="want this key of clients, or one of `headrace keys`; other users of the machine can "
        "see it in process lists",
    )
    secret.add_argument(
        "--api-key-file", type=given, metavar="PATH", help="the same with the key in a file"
    )
    add(
        "--owner-pid",
        type=whole(0),
        default=0,
        metavar="PID",
        help="end when this process is gone; 0: nobody owns the server",
    )
    add(
        "--owner-grace",
        type=number(0),
        default=60.0,
        metavar="SECONDS",
        help="time without requests before that (%(default)g)",
    )
    add(
        "--allow-host",
        type=host,
        action="append",
        default=[],
        metavar="NAME",
        help="further host name that clients may use; may be given several times",
    )
    add(
        "--cors-origin",
        "--allow-origin",
        dest="cors_origin",
        type=origin,
        action="append",
        default=[],
        metavar="ORIGIN",
        help="web page that may use the server, such as https://example.org, null, or * for all; "
        "may be given several times; without it no page may",
    )
    add(
        "--tool-parser",
        choices=[family.name for family in FAMILIES],
        default="",
        help="how the model writes reasoning and tool calls, where its template does not show it",
    )
    add(
        "--record",
        type=given,
        metavar="FILE",
        help="write a JSON line for every request to this file: body with prompts, tokens, times; "
        "keys are not in it",
    )
    add(
        "--access-log",
        action=argparse.BooleanOptionalAction,
        help="log a line for every request, at level info; without this option, where the log is "
        "not shown in a terminal",
    )


def run(options: argparse.Namespace) -> int:
    from engine.server.main import ServeOptions, serve

    serve(
        ServeOptions(
            engine=engine_options(options),
            host=options.host,
            port=options.port,
            api_key=_api_key(options),
            owner_pid=options.owner_pid,
            owner_grace_s=options.owner_grace,
            step_timeout_s=options.step_timeout,
            allow_hosts=tuple(options.allow_host),
            cors_origins=tuple(options.cors_origin),
            record=Path(options.record).expanduser() if options.record else None,
            tool_parser=options.tool_parser,
            access_log=(
                not sys.stderr.isatty() if options.access_log is None else options.access_log
            ),
        )
    )
    return 0


def _api_key(options: argparse.Namespace) -> str:
    """The key that clients must send; "" for none. Raises InvalidRequest naming a file's fault."""
    if options.api_key_file is None:
        return str(options.api_key or "")
    path = Path(options.api_key_file)
    try:
        found = path.expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"--api-key-file {path} cannot be read: {error}.") from error
    if not found or len(found.split()) > 1:
        raise InvalidRequest(f"--api-key-file {path} must hold one key, and nothing else.")
    if not is_api_key(found):
        raise InvalidRequest(f"--api-key-file {path} cannot be used: {API_KEY_RULE}.")
    return found
