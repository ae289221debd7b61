"""`headrace bench host`: the rate at which products consume stored weights, beside plain reading.

Decoding a token on the CPU reads each weight once, so it can be no faster than memory: what counts
is the share of the machine's own best read rate. Both are taken in one run and in turns, since
other programs slow both down.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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

LEAST_BYTES = 2 << 30
CACHES = 4
"""The stretch is so many times as large as the last caches, where memory allows it."""
MOST_OF_FREE = 0.5
REFERENCE_BYTES = 32 << 20
"""PyTorch's operations are so much slower that more would only take time."""


@dataclass(frozen=True)
class Choices:
    """What of it to measure."""

    formats: Sequence[str] = FORMATS
    threads: int = 0
    """Of the products; 0: as when serving."""
    tiers: Sequence[str] = ()
    """Instruction sets; none: the one in use."""
    rounds: int = 5
    mebibytes: int = 0
    """To read in turn; 0: far more than caches hold."""
    operations: bool = False
    """Show PyTorch's operations beside."""


def measure_host(choices: Choices) -> Result:
    """Raises HeadraceError where the library is not built, InvalidRequest, OutOfMemory."""
    native = library()
    if native is None:
        raise HeadraceError("The CPU kernels are not there to be measured.", hint=remedy())
    used = native.tier
    try:
        return _measure(native, choices)
    finally:
        native.set_tier(used)


def _measure(native: Library, choices: Choices) -> Result:
    threads = apply_threads(choices.threads)
    cache = last_cache_bytes()
    stretch = Stretch(_stretch_bytes(choices.mebibytes << 20, cache))
    nbytes = stretch.bytes.numel()
    work = [
        (tier, one)
        for tier in choices.tiers or [native.tier]
        for one in _works(stretch, choices.formats)
    ]
    reads: dict[int, list[float]] = {count: [] for count in counts_to_try(os.cpu_count() or 1)}
    delivered: list[list[float]] = [[] for _ in work]
    for number in range(1, choices.rounds + 1):
        print(f"headrace bench: round {number} of {choices.rounds}", file=sys.stderr)
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
    names = [f"host {one.name}" + (f" {tier}" if choices.tiers else "") for tier, one in work]
    rows = [
        _row(name, statistics.median(rates), read)
        for name, rates in zip(names, delivered, strict=True)
    ]
    if choices.operations:
        rows += _operations(stretch, choices.formats, read)
    rows += [
        Row(name=f"host read {count} threads", value=statistics.median(rates), unit="GB/s")
        for count, rates in reads.items()
    ]
    tiers = ", ".join(choices.tiers) or native.tier
    machine = bench_result.machine(resolve_device("cpu"))
    return Result(
        bench="host",
        commit=bench_result.commit(),
        when=bench_result.now(),
        model=f"one token, {nbytes >> 20} MiB of weights",
        machine=msgspec.structs.replace(machine, stream=round(read, 1), threads=threads),
        rows=rows,
        notes=[
            f"instruction set {tiers}; medians of {choices.rounds}",
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


def _works(stretch: Stretch, formats: Sequence[str]) -> Iterator[Work]:
    for storage in formats:
        yield stretch.linear(storage)
    for storage in formats:
        if (work := stretch.moe(storage)) is not None:
            yield work


def _operations(stretch: Stretch, formats: Sequence[str], read: float) -> Iterator[Row]:
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
