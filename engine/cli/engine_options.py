"""The options that verbs share: what a runtime is started with, and what is logged."""

from __future__ import annotations

import argparse
from typing import get_args

from engine.cli.values import given, number, size, whole
from engine.options import DeviceName, DtypeName, EngineOptions

LOG_LEVELS = ("debug", "info", "warning", "error")


def add_model_options(parser: argparse.ArgumentParser, *, model: str = "") -> None:
    """Which model computes, and where. `model` holds where the person names none; "": they must."""
    add = parser.add_argument
    add(
        "--model",
        required=not model,
        default=model,
        type=given,
        help="folder in the hub's layout, GGUF file, or `demo` for the bundled model",
    )
    add(
        "--device",
        choices=get_args(DeviceName),
        default="auto",
        help="what computes: cuda, cpu, sim (a CPU that plays a GPU, for development), or auto: "
        "cuda where there is one, else cpu",
    )
    add(
        "--dtype",
        choices=get_args(DtypeName),
        default="auto",
        help="of activations and unquantised weights; auto: bfloat16 on cuda, float32 elsewhere",
    )
    add(
        "--moe-cache-rate",
        type=number(0, 1, above_low=True),
        default=1.0,
        metavar="RATE",
        help="share of the experts that have a place on the device, 0 < RATE <= 1 (%(default)g)",
    )
    add(
        "--emulate-vram",
        type=size,
        default=0,
        metavar="SIZE",
        help="play a GPU with so much memory in all, other programs' included, such as 8GiB",
    )
    add(
        "--emulate-link",
        type=number(0),
        default=0.0,
        metavar="GB/S",
        help="let experts reach the GPU no faster than this, in 10^9 bytes a second",
    )
    add(
        "--threads",
        type=whole(0),
        default=0,
        metavar="N",
        help="threads that compute on the CPU; 0: one per physical core",
    )


def add_engine_options(parser: argparse.ArgumentParser, *, log_level: str) -> None:
    """`log_level` holds where the person names none."""
    add_model_options(parser)
    add = parser.add_argument
    add(
        "--max-sequences",
        type=whole(1),
        default=8,
        metavar="N",
        help="answers that are written at once (%(default)s); further requests wait",
    )
    add(
        "--max-waiting",
        type=whole(0),
        default=256,
        metavar="N",
        help="requests that may wait (%(default)s); one more is refused",
    )
    add(
        "--context",
        type=whole(0),
        default=0,
        metavar="TOKENS",
        help="longest prompt plus answer; 0: the model's own limit",
    )
    add(
        "--kv-tokens",
        type=whole(0),
        default=0,
        metavar="TOKENS",
        help="tokens that all answers together can hold; 0: what the memory has room for",
    )
    add(
        "--kv-reserve-tokens",
        type=whole(1),
        default=8192,
        metavar="TOKENS",
        help="tokens of context that have room before experts take the rest (%(default)s)",
    )
    add(
        "--prefill-chunk",
        type=whole(1),
        metavar="TOKENS",
        help="most tokens of a prompt that are read in one step: more is faster and takes more "
        "memory; without it 8192 on a GPU and 512 elsewhere, or fewer where memory is short",
    )
    add(
        "--emulate-ram",
        type=size,
        default=0,
        metavar="SIZE",
        help="pretend that only so much memory is free, such as 8GiB",
    )
    add(
        "--lock-memory",
        action="store_true",
        help="keep the experts from being swapped out, as far as the system permits it",
    )
    add(
        "--step-timeout",
        type=number(0, above_low=True),
        default=120.0,
        metavar="SECONDS",
        help="restart a runtime whose step takes longer (%(default)g)",
    )
    add(
        "--log-level",
        choices=LOG_LEVELS,
        default=log_level,
        help="least weight of what is told on standard error (%(default)s)",
    )


def engine_options(options: argparse.Namespace) -> EngineOptions:
    return EngineOptions(
        model=options.model,
        device=options.device,
        dtype=options.dtype,
        moe_cache_rate=options.moe_cache_rate,
        max_sequences=options.max_sequences,
        max_waiting=options.max_waiting,
        context_tokens=options.context,
        kv_tokens=options.kv_tokens,
        kv_reserve_tokens=options.kv_reserve_tokens,
        prefill_chunk_tokens=options.prefill_chunk,
        threads=options.threads,
        emulate_ram_bytes=options.emulate_ram,
        emulate_vram_bytes=options.emulate_vram,
        emulate_link_bytes_per_s=int(options.emulate_link * 1e9),
        lock_memory=options.lock_memory,
    )


def engine_arguments(options: EngineOptions) -> list[str]:
    """The arguments that `engine_options` makes these options of."""
    given = {
        "--model": options.model,
        "--device": options.device,
        "--dtype": options.dtype,
        "--moe-cache-rate": options.moe_cache_rate,
        "--max-sequences": options.max_sequences,
        "--max-waiting": options.max_waiting,
        "--context": options.context_tokens,
        "--kv-tokens": options.kv_tokens,
        "--kv-reserve-tokens": options.kv_reserve_tokens,
        "--prefill-chunk": options.prefill_chunk_tokens,
        "--threads": options.threads,
        "--emulate-ram": options.emulate_ram_bytes,
        "--emulate-vram": options.emulate_vram_bytes,
        "--emulate-link": options.emulate_link_bytes_per_s / 1e9,
    }
    named = [f"{option}={value}" for option, value in given.items() if value is not None]
    return [*named, "--lock-memory"] if options.lock_memory else named
