"""`headrace bench host`: the rate at which products consume stored weights, beside plain reading.

Decoding a token on the CPU reads each weight once, so it can be no faster than memory: what counts
is the share of the machine's own best read rate. Both are taken in one run and in turns, since
other programs slow both down.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from engine.errors import HeadraceError, InvalidRequest, OutOfMemory
from engine.memory.budget import free_host_bytes
from engine.memory.device import resolve_device
from engine.native.library import Library, NativeError, library, remedy
from engine.native.sweep import counts_to_try
from engine.runtime import bench_result
from engine.runtime.bench_result import Result, Row
from engine.runtime.caches import UNKNOWN_BYTES, last_cache_bytes
from engine.runtime.host_work import FORMATS, HIDDEN, INNER, ROUTES, Stretch, Work
from engine.runtime.threads import apply_threads

HOST = (
    "Rate at which products with one token, and steps of MoE layers, consume stored weights: as a "
    "share of the best rate at which this machine reads memory."
)
LEAST_BYTES = 2 << 30
CACHES = 4
"""The stretch is so many times as large as the last caches, where memory allows it."""
MOST_OF_FREE = 0.5
REFERENCE_BYTES = 32 << 20
"""PyTorch's operations are so much slower that more would only take time."""


def run_host(argv: list[str]) -> int:
    """Returns the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        result = measure_host(arguments)
    except HeadraceError as error:
        print(f"headrace bench: {error.message} {error.hint}".rstrip(), file=sys.stderr)
        return 1
    print(bench_result.table(result))
    if arguments.json is not None:
        bench_result.write(result, arguments.json)
        print(f"Written to {arguments.json}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headrace bench host",
        description=HOST,
    )
    parser.add_argument("--formats", nargs="+", default=list(FORMATS), choices=FORMATS)
    parser.add_argument("--threads", type=int, default=0, help="of products; 0: as when serving")
    parser.add_argument("--tiers", nargs="+", default=[], help="instruction sets: avx2, avx512")
    parser.add_argument("--rounds", type=int, default=5, help="the median of them is shown")
    parser.add_argument(
        "--mebibytes", type=int, default=0, help="to read in turn; 0: far more than caches hold"
    )
    parser.add_argument(
        "--operations", action="store_true", help="show PyTorch's operations beside them"
    )
    parser.add_argument("--json", type=Path, help="write the record to this file")
    return parser


def measure_host(arguments: argparse.Namespace) -> Result:
    """Raises HeadraceError where the library is not built, InvalidRequest, OutOfMemory."""
    if arguments.rounds < 1 or arguments.mebibytes < 0:
        raise InvalidRequest("--rounds is at least 1 and --mebibytes at least 0.")
    native = library()
    if native is None:
        raise HeadraceError("The CPU kernels are not there to be measured.", hint=remedy())
    used = native.tier
    try:
        return _measure(native, arguments)
    finally:
        native.set_tier(used)


def _measure(native: Library, arguments: argparse.Namespace) -> Result:
    threads = apply_threads(arguments.threads)
    cache = last_cache_bytes()
    stretch = Stretch(_stretch_bytes(arguments.mebibytes << 20, cache))
    nbytes = stretch.bytes.numel()
    work = [
        (tier, one)
        for tier in arguments.tiers or [native.tier]
        for one in _works(stretch, arguments.formats)
    ]
    reads: dict[int, list[float]] = {count: [] for count in counts_to_try(os.cpu_count() or 1)}
    delivered: list[list[float]] = [[] for _ in work]
    for number in range(1, arguments.rounds + 1):
        print(f"headrace bench: round {number} of {arguments.rounds}", file=sys.stderr)
        for count, rates in reads.items():
            rates.append(_read_rate(native, stretch, count))
        best = _best(reads)
        for (tier, one), rates in zip(work, delivered, strict=True):
            _use_tier(native, tier)
            reads[best].append(_read_rate(native, stretch, best))
            _use_threads(native, threads)
            rates.append(one.rate())
    best = _best(reads)
    read = statistics.median(reads[best])
    names = [f"host {one.name}" + (f" {tier}" if arguments.tiers else "") for tier, one in work]
    rows = [
        _row(name, statistics.median(rates), read)
        for name, rates in zip(names, delivered, strict=True)
    ]
    if arguments.operations:
        rows += _operations(stretch, arguments.formats, read)
    rows += [
        Row(name=f"host read {count} threads", value=statistics.median(rates), unit="GB/s")
        for count, rates in reads.items()
    ]
    tiers = ", ".join(arguments.tiers) or native.tier
    machine = bench_result.machine(resolve_device("cpu"))
    return Result(
        bench="host",
        commit=bench_result.commit(),
        when=bench_result.now(),
        model=f"one token, {nbytes >> 20} MiB of weights",
        machine=msgspec.structs.replace(machine, stream=round(read, 1), threads=threads),
        rows=rows,
        notes=[
            f"instruction set {tiers}; medians of {arguments.rounds}",
            f"reading: in turns with the products, by {best} threads, this machine's best",
            f"moe: {ROUTES} experts [{INNER}, {HIDDEN}] at random of {nbytes >> 20} MiB, M = 1",
            *_cache_note(nbytes, cache),
        ],
    )


def _cache_note(nbytes: int, cache: int) -> Iterator[str]:
    if cache and nbytes < CACHES * cache:
        yield (
            f"The last caches hold {cache >> 20} MiB, {cache / nbytes:.0%} of what is read in "
            "turn: all rates here are partly theirs."
        )


def _stretch_bytes(asked: int, cache: int) -> int:
    most = int(free_host_bytes() * MOST_OF_FREE)
    if asked > most:
        raise OutOfMemory(
            f"{asked / 1e9:.1f} GB are asked for; half of what is free are {most / 1e9:.1f} GB.",
            hint="Lower --mebibytes.",
        )
    wanted = asked or max(LEAST_BYTES, CACHES * (cache or UNKNOWN_BYTES))
    return min(wanted, most) >> 20 << 20


def _works(stretch: Stretch, formats: list[str]) -> Iterator[Work]:
    for storage in formats:
        yield stretch.linear(storage)
    for storage in formats:
        if (work := stretch.moe(storage)) is not None:
            yield work


def _operations(stretch: Stretch, formats: list[str], read: float) -> Iterator[Row]:
    """The references, which answer where the library was not built."""
    for storage in formats:
        work = stretch.linear(storage, REFERENCE_BYTES, reference=True)
        yield _row(f"host {work.name} torch", work.rate(), read)
    for storage in formats:
        steps = stretch.moe(storage, tokens=4, reference=True)
        if steps is not None:
            yield _row(f"host {steps.name} torch", steps.rate(), read)


def _row(name: str, rate: float, read: float) -> Row:
    return Row(name=name, value=rate, unit="GB/s", versus="reading", ratio=rate / read)


def _best(reads: dict[int, list[float]]) -> int:
    return max(reads, key=lambda count: statistics.median(reads[count]))


def _read_rate(native: Library, stretch: Stretch, threads: int) -> float:
    _use_threads(native, threads)
    begin = time.perf_counter()
    native.read(stretch.bytes.data_ptr(), stretch.bytes.numel())
    return stretch.bytes.numel() / (time.perf_counter() - begin) / 1e9


def _use_threads(native: Library, threads: int) -> None:
    apply_threads(threads)
    native.set_threads(threads)


def _use_tier(native: Library, tier: str) -> None:
    try:
        native.set_tier(tier)
    except NativeError as error:
        raise InvalidRequest(f"--tiers: {error}") from error
