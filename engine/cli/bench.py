"""`headrace bench`: what each measurement takes. It prints a table and may write a record.

Measurements are in engine/runtime and need torch, which is imported once the options are read.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from engine.cli.engine_options import add_model_options, engine_arguments
from engine.cli.record import add_json_option, check_writable
from engine.cli.values import given, whole
from engine.memory import machine_profile
from engine.memory.machine_profile import Measured
from engine.native.library import FORMATS
from engine.options import EngineOptions

if TYPE_CHECKING:
    from engine.runtime.bench_result import Result

SUMMARY = "measure this machine and a model"
DESCRIPTION = "Measure this machine and a model."


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(log_level="warning")
    measurements = parser.add_subparsers(
        title="measurements", required=True, metavar="MEASUREMENT", dest="measurement"
    )

    def add(
        name: str,
        summary: str,
        options: Callable[[argparse.ArgumentParser], None],
        measure: Callable[[argparse.Namespace], Result],
    ) -> None:
        own = measurements.add_parser(name, help=summary, description=f"{summary.capitalize()}.")
        options(own)
        add_json_option(own)
        own.set_defaults(measure=measure)

    add("decode", "tokens a second, beside transformers on the same weights", _decode, _run_decode)
    add("prefill", "how fast prompts are read, beside what the link allows", _prefill, _run_prefill)
    add("interleave", "how long a prompt makes an answer wait", _interleave, _run_interleave)
    add("ttft", "what a client waits for its first text", _ttft, _run_ttft)
    add("load", "what a start takes until its first text", _load, _run_load)
    add(
        "host",
        "the rate at which the CPU consumes weights, beside reading memory",
        _host,
        _run_host,
    )
    add("link", "the rate at which experts reach the GPU, beside plain copies", _link, _run_link)


def run(options: argparse.Namespace) -> int:
    """Raises InvalidRequest where the record cannot be written, before anything is measured."""
    if options.json is not None:
        check_writable(options.json)
    from engine.runtime.openmp import wait_without_spinning

    wait_without_spinning()
    from engine.runtime import bench_result

    result: Result = options.measure(options)
    print(bench_result.table(result))
    _remember(result, options)
    if options.json is not None:
        bench_result.write(result, options.json)
        print(f"Written to {options.json}")
    return 0


def _remember(result: Result, options: argparse.Namespace) -> None:
    """Keep this PC's own rates for the estimates of `headrace fit` and the app. A host's rate over
    few bytes is its caches', not its memory's."""
    machine = result.machine
    if result.bench == "link":
        link = Measured(gb_per_s=machine.link, when=result.when, hardware=machine.gpu)
        machine_profile.remember(link=link)
    elif result.bench == "host" and not options.mebibytes:
        hardware = machine_profile.host_hardware(machine.host, machine.ram_bytes)
        host = Measured(gb_per_s=machine.stream, when=result.when, hardware=hardware)
        machine_profile.remember(host=host)


def _decode(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser, model="demo")
    add = parser.add_argument
    add(
        "--tokens",
        type=whole(2),
        default=64,
        metavar="N",
        help="tokens to decode in a round (%(default)s)",
    )
    add(
        "--prompt-tokens",
        type=whole(1),
        default=64,
        metavar="N",
        help="tokens to read before (%(default)s)",
    )
    add(
        "--rounds",
        type=whole(1),
        default=5,
        metavar="N",
        help="the median of so many is shown (%(default)s)",
    )
    add("--alone", action="store_true", help="leave transformers out")
    add(
        "--sampled",
        action="store_true",
        help="draw tokens as chats do (temperature 1, top_k 20, top_p 0.95), after a prompt of its "
        "own in each round; without transformers",
    )


def _run_decode(options: argparse.Namespace) -> Result:
    from engine.runtime.bench import measure_decode

    return measure_decode(
        _engine(options, max_sequences=1),
        tokens=options.tokens,
        prompt_tokens=options.prompt_tokens,
        rounds=options.rounds,
        alone=options.alone,
        sampled=options.sampled,
    )


def _engine(options: argparse.Namespace, **more: Any) -> EngineOptions:
    return EngineOptions(
        model=options.model,
        device=options.device,
        dtype=options.dtype,
        moe_cache_rate=options.moe_cache_rate,
        threads=options.threads,
        emulate_vram_bytes=options.emulate_vram,
        emulate_link_bytes_per_s=int(options.emulate_link * 1e9),
        **more,
    )


def _rounds(parser: argparse.ArgumentParser, default: int) -> None:
    parser.add_argument(
        "--rounds",
        type=whole(1),
        default=default,
        metavar="N",
        help="the median of so many is shown (%(default)s)",
    )


def _chunk(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--prefill-chunk",
        type=whole(1),
        metavar="TOKENS",
        help="most tokens of a prompt in a step; without it as when serving",
    )


def _lengths(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--lengths",
        nargs="+",
        type=whole(1),
        default=[512, 4096, 8192, 16384],
        metavar="N",
        help="tokens of the prompts (512, 4096, 8192 and 16384)",
    )


def _prefill(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser, model="demo")
    _lengths(parser)
    _rounds(parser, 3)
    _chunk(parser)
    parser.add_argument(
        "--resident",
        action="store_true",
        help="read the same with all experts on the device before, which must have room",
    )


def _run_prefill(options: argparse.Namespace) -> Result:
    from engine.runtime.bench_prefill import measure_prefill

    return measure_prefill(
        _engine(options, prefill_chunk_tokens=options.prefill_chunk),
        options.lengths,
        options.rounds,
        resident=options.resident,
    )


def _interleave(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser, model="demo")
    parser.add_argument(
        "--prompt-tokens",
        type=whole(1),
        default=16384,
        metavar="N",
        help="of the prompt that comes (%(default)s)",
    )
    _rounds(parser, 3)
    _chunk(parser)


def _run_interleave(options: argparse.Namespace) -> Result:
    from engine.runtime.bench_interleave import measure_interleave

    engine = _engine(options, prefill_chunk_tokens=options.prefill_chunk)
    return measure_interleave(engine, options.prompt_tokens, options.rounds)


def _ttft(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser, model="demo")
    _lengths(parser)
    parser.add_argument(
        "--talk-tokens",
        type=whole(1),
        default=8192,
        metavar="N",
        help="of the conversation that gets one more turn (%(default)s)",
    )
    _rounds(parser, 3)
    _chunk(parser)


TEMPLATE_TOKENS = 1024
"""Room for a conversation's template, answers and next turn."""


def _run_ttft(options: argparse.Namespace) -> Result:
    from engine.runtime.bench_ttft import measure_ttft

    longest = max(*options.lengths, options.talk_tokens)
    engine = _engine(
        options,
        prefill_chunk_tokens=options.prefill_chunk,
        context_tokens=longest + TEMPLATE_TOKENS,
    )
    return measure_ttft(
        engine, engine_arguments(engine), options.lengths, options.talk_tokens, options.rounds
    )


def _load(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser, model="demo")
    _rounds(parser, 1)


def _run_load(options: argparse.Namespace) -> Result:
    from engine.runtime.bench_ttft import measure_load

    engine = _engine(options)
    return measure_load(engine, engine_arguments(engine), options.rounds)


def _host(parser: argparse.ArgumentParser) -> None:
    formats = list(FORMATS)
    add = parser.add_argument
    add(
        "--formats",
        nargs="+",
        default=formats,
        choices=formats,
        metavar="FORMAT",
        help=f"of the weights (all): {', '.join(formats)}",
    )
    add(
        "--threads",
        type=whole(0),
        default=0,
        metavar="N",
        help="of the products; 0: as when serving (%(default)s)",
    )
    add(
        "--tiers",
        nargs="+",
        type=given,
        default=[],
        metavar="TIER",
        help="instruction sets, such as avx2 and avx512 (the best one)",
    )
    add(
        "--rounds",
        type=whole(1),
        default=5,
        metavar="N",
        help="the median of so many is shown (%(default)s)",
    )
    add(
        "--mebibytes",
        type=whole(0),
        default=0,
        metavar="N",
        help="to read in turn; 0: far more than caches hold (%(default)s)",
    )
    add("--operations", action="store_true", help="show PyTorch's operations beside them")


def _run_host(options: argparse.Namespace) -> Result:
    from engine.runtime.bench_host import Choices, measure_host

    return measure_host(
        Choices(
            formats=options.formats,
            threads=options.threads,
            tiers=options.tiers,
            rounds=options.rounds,
            mebibytes=options.mebibytes,
            operations=options.operations,
        )
    )


def _link(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--model",
        default="demo",
        type=given,
        help="whose experts' size is taken: folder in the hub's layout, GGUF file, or `demo`",
    )
    add(
        "--blob-bytes",
        type=whole(0),
        default=0,
        metavar="N",
        help="of an expert; 0: as the model has them (%(default)s)",
    )
    add(
        "--rounds",
        type=whole(1),
        default=15,
        metavar="N",
        help="the median of so many is shown (%(default)s)",
    )


def _run_link(options: argparse.Namespace) -> Result:
    from engine.runtime.bench_link import measure_link

    return measure_link(options.model, options.blob_bytes, options.rounds)
