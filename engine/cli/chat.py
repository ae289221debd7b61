"""`headrace chat`."""

from __future__ import annotations

import argparse
import asyncio
import logging

from engine.cli.engine_options import add_engine_options, engine_options
from engine.cli.values import given, number, whole

SUMMARY = "talk to a model in the terminal"
DESCRIPTION = "Talk to a model in the terminal: by turns, or one question with --prompt."


def add_options(parser: argparse.ArgumentParser) -> None:
    add_engine_options(parser, log_level="error")
    add = parser.add_argument
    add("--prompt", type=given, metavar="TEXT", help="print the answer to this and end")
    add("--system", default="", metavar="TEXT", help="instructions for the model")
    add(
        "--max-tokens",
        type=whole(1),
        default=0,
        metavar="N",
        help="longest answer; as long as there is room where it is not given",
    )
    add(
        "--temperature",
        type=number(0, 2),
        metavar="T",
        help="0: always the likeliest token; higher is more varied; else the model's default",
    )
    add(
        "--top-p",
        type=number(0, 1),
        metavar="P",
        help="draw from the likeliest tokens that have this share together, such as 0.9; else the "
        "model's default",
    )
    add(
        "--seed",
        type=whole(0),
        metavar="N",
        help="the same seed and options give the same answer again",
    )


def run(options: argparse.Namespace) -> int:
    from engine.server.terminal_chat import ChatOptions, chat

    # What is wrong with the model's own files concerns whoever talks to it.
    logging.getLogger("headrace.model").setLevel(logging.WARNING)
    named = {"temperature": options.temperature, "top_p": options.top_p, "seed": options.seed}
    chat_options = ChatOptions(
        engine=engine_options(options),
        prompt=options.prompt,
        system=options.system,
        max_tokens=options.max_tokens,
        sampling={name: value for name, value in named.items() if value is not None},
        step_timeout_s=options.step_timeout,
    )
    return asyncio.run(chat(chat_options))
