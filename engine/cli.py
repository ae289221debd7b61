"""The engine's verbs: serve, chat, bench."""

from __future__ import annotations

import argparse
import asyncio
import io
import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import engine
from engine.errors import HeadraceError, InvalidRequest, PortInUse
from engine.options import DEFAULT_PORT, EngineOptions

EXIT_ERROR, EXIT_USAGE, EXIT_PORT = 1, 2, 3
LOG_LEVELS = ("debug", "info", "warning", "error")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb. Returns the exit code: 0, 1 typed error, 2 usage, 3 port in use, 130 Ctrl-C."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _print_anything()
    try:
        if arguments[:1] == ["bench"]:
            return _bench(arguments[1:])
        options = _parser().parse_args(arguments)
        _start_logging(options.log_level)
        run: Callable[[argparse.Namespace], int] = options.run
        return run(options)
    except HeadraceError as error:
        print(f"error: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return EXIT_PORT if isinstance(error, PortInUse) else EXIT_ERROR
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            print(f"error: {error}", file=sys.stderr)
        # Whoever read the output has gone; Python must not complain about it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_ERROR


def _print_anything() -> None:
    """A terminal or pipe of few characters gets `?` for the others, rather than end the program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


# --- verbs ------------------------------------------------------------------------------------


def _serve(options: argparse.Namespace) -> int:
    from engine.server.main import ServeOptions, serve

    serve(
        ServeOptions(
            engine=_engine_options(options),
            host=options.host,
            port=options.port,
            api_key=_api_key(options),
            owner_pid=options.owner_pid,
            owner_grace_s=options.owner_grace,
            step_timeout_s=options.step_timeout,
            allow_hosts=tuple(options.allow_host),
            allow_origins=tuple(options.allow_origin),
        )
    )
    return 0


def _api_key(options: argparse.Namespace) -> str:
    """The key that clients must send; "" for none. Raises InvalidRequest naming a file's fault."""
    path: Path | None = options.api_key_file
    if path is None:
        return str(options.api_key or "")
    try:
        key = path.expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"--api-key-file {path} cannot be read: {error}.") from error
    if not key or len(key.split()) > 1:
        raise InvalidRequest(f"--api-key-file {path} must hold one key, and nothing else.")
    return key


def _chat(options: argparse.Namespace) -> int:
    from engine.server.terminal_chat import ChatOptions, chat

    given = {"temperature": options.temperature, "top_p": options.top_p, "seed": options.seed}
    chat_options = ChatOptions(
        engine=_engine_options(options),
        prompt=options.prompt,
        system=options.system,
        max_tokens=options.max_tokens,
        sampling={name: value for name, value in given.items() if value is not None},
        step_timeout_s=options.step_timeout,
    )
    return asyncio.run(chat(chat_options))


def _bench(arguments: list[str]) -> int:
    _start_logging("warning")
    from engine.runtime.openmp import wait_without_spinning

    wait_without_spinning()
    from engine.runtime.bench import main as bench  # torch, so only for this verb

    code: int = bench(arguments)
    return code


def _engine_options(options: argparse.Namespace) -> EngineOptions:
    return EngineOptions(
        model=options.model,
        device=options.device,
        dtype=options.dtype,
        moe_cache_rate=options.moe_cache_rate,
        max_sequences=options.max_sequences,
        max_waiting=options.max_waiting,
        context_tokens=options.context,
        kv_tokens=options.kv_tokens,
        prefill_chunk_tokens=options.prefill_chunk,
        threads=options.threads,
        emulate_ram_bytes=options.emulate_ram,
        lock_memory=options.lock_memory,
    )


def _start_logging(level: str) -> None:
    logging.basicConfig(
        level=level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
    )
    # uvicorn tells of its own life, of which the server's log has said the same.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("asyncio").setLevel(logging.WARNING)


# --- options ----------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"error: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="headrace", description=engine.__doc__)
    parser.add_argument("--version", action="version", version=f"headrace {engine.__version__}")
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")

    serve = verbs.add_parser(
        "serve",
        # An abbreviation of --api-key would be written down with the key.
        allow_abbrev=False,
        help="serve a model to OpenAI and Anthropic clients",
        description=(
            "Serve a model over HTTP. A model that does not load ends the program with its "
            "reason; under --owner-pid the server stays and tells the reason at /health."
        ),
    )
    _add_engine_options(serve)
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    serve.add_argument(
        "--port", type=_whole(0, 65535), default=DEFAULT_PORT, help="0 takes any (%(default)s)"
    )
    key = serve.add_mutually_exclusive_group()
    key.add_argument(
        "--api-key",
        type=_key,
        metavar="KEY",
        help="want this key of clients; other users of the machine can see it in process lists",
    )
    key.add_argument(
        "--api-key-file", type=Path, metavar="PATH", help="the same with the key in a file"
    )
    serve.add_argument(
        "--owner-pid",
        type=_whole(0),
        default=0,
        metavar="PID",
        help="end when this process is gone",
    )
    serve.add_argument(
        "--owner-grace",
        type=_number(0),
        default=60.0,
        metavar="SECONDS",
        help="time without requests before that (%(default)g)",
    )
    serve.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="further host name that clients may use",
    )
    serve.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="web page origin that may use the server, such as https://example.org or null",
    )
    serve.set_defaults(run=_serve, log_level="info")

    chat = verbs.add_parser("chat", help="talk to a model in the terminal")
    _add_engine_options(chat)
    chat.add_argument("--prompt", help="print the answer to this and end")
    chat.add_argument("--system", default="", help="instructions for the model")
    chat.add_argument("--max-tokens", type=_whole(1), default=0, metavar="N")
    chat.add_argument("--temperature", type=_number(0, 2), metavar="T", help="0 is greedy")
    chat.add_argument("--top-p", type=_number(0, 1), metavar="P")
    chat.add_argument("--seed", type=_whole(0), metavar="N")
    chat.set_defaults(run=_chat, log_level="error")

    # Parsed by its own module, which needs torch.
    verbs.add_parser("bench", help="measure this machine and a model", add_help=False)
    return parser


def _add_engine_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        required=True,
        help="folder in hub layout, GGUF file, or `demo` for the bundled model",
    )
    parser.add_argument("--device", choices=("auto", "cpu", "sim", "cuda"), default="auto")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument(
        "--moe-cache-rate",
        type=_number(0, 1, above_low=True),
        default=1.0,
        metavar="RATE",
        help="share of the experts that have a place on the device, 0 < RATE <= 1",
    )
    parser.add_argument("--max-sequences", type=_whole(1), default=8, metavar="N")
    parser.add_argument("--max-waiting", type=_whole(0), default=256, metavar="N")
    parser.add_argument(
        "--context", type=_whole(0), default=0, metavar="TOKENS", help="0: the model's own limit"
    )
    parser.add_argument("--kv-tokens", type=_whole(0), default=0, metavar="TOKENS")
    parser.add_argument("--prefill-chunk", type=_whole(1), default=512, metavar="TOKENS")
    parser.add_argument("--threads", type=_whole(0), default=0, metavar="N")
    parser.add_argument(
        "--emulate-ram",
        type=_size,
        default=0,
        metavar="SIZE",
        help="pretend that only so much memory is free, such as 8GiB",
    )
    parser.add_argument(
        "--lock-memory", action="store_true", help="keep the experts from being swapped out"
    )
    parser.add_argument(
        "--step-timeout",
        type=_number(0, above_low=True),
        default=120.0,
        metavar="SECONDS",
        help="restart a runtime whose step takes longer (%(default)g)",
    )
    parser.add_argument("--log-level", choices=LOG_LEVELS)


def _key(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("an empty key would let everybody in")
    return text


def _whole(low: int, high: int | None = None) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < low or (high is not None and value > high):
            bounds = f"{low} or more" if high is None else f"from {low} to {high}"
            raise argparse.ArgumentTypeError(f"{value} is out of range: it must be {bounds}")
        return value

    return parse


def _number(
    low: float, high: float | None = None, *, above_low: bool = False
) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        high_enough = value > low if above_low else value >= low
        if not high_enough or (high is not None and value > high) or value == float("inf"):
            least = f"above {low:g}" if above_low else f"{low:g} or more"
            most = "" if high is None else f" and at most {high:g}"
            raise argparse.ArgumentTypeError(f"{text} is out of range: it must be {least}{most}")
        return value

    return parse


_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(|[kmg]i?)b?", text.strip().lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 8GiB")
    return int(float(match.group(1)) * _UNITS[match.group(2)])


if __name__ == "__main__":
    raise SystemExit(main())
