"""`headrace verify`: what the backends compute, beside a float32 reference and one another.

It is in engine/runtime and needs torch, which is imported once the options are read.
"""

from __future__ import annotations

import argparse
import sys

from engine.cli.record import add_json_option, check_writable, file
from engine.cli.values import given, number, whole

SUMMARY = "check what this machine computes against a float32 reference"
DESCRIPTION = (
    "Compute the same tokens on each device, with any share of the experts in slots, and beside a "
    "float32 reference. The exit code is 1 if bits differ that must be equal, or a result is too "
    "far from the reference; the setting is named."
)
DEVICES = ("cpu", "sim", "cuda")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(log_level="warning")
    add = parser.add_argument
    add(
        "--model",
        default="demo",
        type=given,
        help="folder in the hub's layout, GGUF file, or `demo` for the bundled model (%(default)s)",
    )
    add(
        "--layers",
        type=whole(1),
        default=0,
        metavar="N",
        help="load only the first N layers of a large model",
    )
    add(
        "--devices",
        nargs="+",
        choices=DEVICES,
        default=(),
        help="what computes (cpu, and cuda where there is one, else sim)",
    )
    add(
        "--rates",
        nargs="+",
        type=number(0, 1, above_low=True),
        metavar="RATE",
        help="shares of the experts in slots, beside all of them (0.05 0.12 0.37 0.75)",
    )
    add(
        "--text",
        type=file,
        metavar="FILE",
        help="what is read: a text, or JSON strings by lines in a .jsonl file (for the demo model "
        "its held-out conversations, else random tokens)",
    )
    add(
        "--prompt-tokens",
        type=whole(1),
        default=64,
        metavar="N",
        help="tokens of it that are read as a prompt (%(default)s)",
    )
    add(
        "--tokens",
        type=whole(1),
        default=64,
        metavar="N",
        help="tokens after them, each in a step of its own (%(default)s)",
    )
    add(
        "--replays",
        type=whole(0),
        default=0,
        metavar="N",
        help="so many steps of several sequences, with random tokens and places, each captured and "
        "plain (%(default)s)",
    )
    add(
        "--reference",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="what computes the reference; auto: cuda, if it is among the devices",
    )
    add(
        "--threads",
        type=whole(0),
        default=0,
        metavar="N",
        help="threads that compute on the CPU; 0: one per physical core",
    )
    add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    """1 if something is not as it must be. Raises InvalidRequest where the record cannot be
    written, before anything is computed."""
    if options.json is not None:
        check_writable(options.json)
    from engine.runtime.openmp import wait_without_spinning

    wait_without_spinning()
    from engine.runtime import bench_result, verify, verify_table

    verdict = verify.verify(
        verify.Choices(
            model=options.model,
            layers=options.layers,
            devices=options.devices,
            rates=verify.RATES if options.rates is None else options.rates,
            text=options.text,
            prompt_tokens=options.prompt_tokens,
            tokens=options.tokens,
            replays=options.replays,
            reference=options.reference,
            threads=options.threads,
        )
    )
    print(verify_table.table(verdict.result, verdict.reference, verdict.outcomes))
    if options.json is not None:
        bench_result.write(verdict.result, options.json)
        print(f"Written to {options.json}")
    for failure in verdict.failures:
        print(f"FAILED: {failure}.", file=sys.stderr)
    return 1 if verdict.failures else 0
