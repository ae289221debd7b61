"""`headrace bench host`: the rate at which products consume stored weights, beside plain reading.

Decoding a token on the CPU reads each weight once, so it can be no faster than memory: what counts
is the share of the machine's own best read rate. Both are taken in one run and in turns, since
other programs slow both down. Where the library is not there, PyTorch's operations are measured.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import torch

from engine.errors import InvalidRequest, OutOfMemory
from engine.memory.budget import free_host_bytes
from engine.memory.device import resolve_device
from engine.native.library import Library, NativeError, library, remedy
from engine.native.sweep import counts_to_try
from engine.native.topology import topology
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
    """Raises InvalidRequest, OutOfMemory."""
    native = library()
    if native is None:
        if choices.tiers:
            raise InvalidRequest(
                "--tiers: the CPU kernels are not there to be measured.", hint=remedy()
            )
        return _measure(None, choices)
    used = native.tier
    try:
        return _measure(native, choices)
    finally:
        native.set_tier(used)


def _measure(native: Library | None, choices: Choices) -> Result:
    threads = apply_threads(choices.threads)
    cache = last_cache_bytes()
    stretch = Stretch(_stretch_bytes(choices.mebibytes << 20, cache))
    nbytes = stretch.bytes.numel()
    work = list(_works(native, stretch, choices))
    reads: dict[int, list[float]] = {count: [] for count in counts_to_try(topology().usable)}
    delivered: list[list[float]] = [[] for _ in work]
    for number in range(1, choices.rounds + 1):
        print(f"headrace bench: round {number} of {choices.rounds}", file=sys.stderr)
        for count, rates in reads.items():
            rates.append(_read_rate(native, stretch, count))
        best = _best(reads)
        for (tier, _, one), rates in zip(work, delivered, strict=True):
            _use_tier(native, tier)
            reads[best].append(_read_rate(native, stretch, best))
            _use_threads(native, threads)
            rates.append(one.rate())
    best = _best(reads)
    read = statistics.median(reads[best])
    rows = [
        _row(name, statistics.median(rates), read)
        for (_, name, _), rates in zip(work, delivered, strict=True)
    ]
    if native is not None and choices.operations:
        operations = _operations(stretch, choices.formats)
        rows += [_row(name, one.rate(), read) for name, one in operations]
    rows += [
        Row(name=f"host read {count} threads", value=statistics.median(rates), unit="GB/s")
        for count, rates in reads.items()
    ]
    machine = bench_result.machine(resolve_device("cpu"))
    return Result(
        bench="host",
        commit=bench_result.commit(),
        when=bench_result.now(),
        model=f"one token, {nbytes >> 20} MiB of weights",
        machine=msgspec.structs.replace(machine, stream=round(read, 1), threads=threads),
        rows=rows,
        notes=[
            f"{_measured(native, choices)}; medians of {choices.rounds}",
            f"reading: in turns with the products, by {best} threads, this machine's best",
            *_moe_note(rows, nbytes),
            *_cache_note(nbytes, cache),
        ],
    )


def _measured(native: Library | None, choices: Choices) -> str:
    if native is None:
        return f"PyTorch's operations, since the CPU kernels are not there. {remedy()}"
    return f"instruction set {', '.join(choices.tiers) or native.tier}"


def _moe_note(rows: Sequence[Row], nbytes: int) -> Iterator[str]:
    if any(row.name.startswith("host moe ") for row in rows):
        yield (
            f"moe: {ROUTES} experts [{INNER}, {HIDDEN}] at random of {nbytes >> 20} MiB, M = 1, "
            "bfloat16 activations; no row where fewer fit"
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


def _works(
    native: Library | None, stretch: Stretch, choices: Choices
) -> Iterator[tuple[str, str, Work]]:
    """Instruction set, name of the row, and what is measured."""
    if native is None:
        yield from (("", name, one) for name, one in _operations(stretch, choices.formats))
        return
    for tier in choices.tiers or [native.tier]:
        suffix = f" {tier}" if choices.tiers else ""
        products = [stretch.linear(storage) for storage in choices.formats]
        steps = [stretch.moe(storage) for storage in choices.formats]
        for work in (*products, *steps):
            if work is not None:
                yield tier, f"host {work.name}{suffix}", work


def _operations(stretch: Stretch, formats: Sequence[str]) -> Iterator[tuple[str, Work]]:
    """The references, which answer where the library was not built."""
    products = [stretch.linear(storage, REFERENCE_BYTES, reference=True) for storage in formats]
    steps = [stretch.moe(storage, tokens=4, reference=True) for storage in formats]
    for work in (*products, *steps):
        if work is not None:
            yield f"host {work.name} torch", work


def _row(name: str, rate: float, read: float) -> Row:
    return Row(name=name, value=rate, unit="GB/s", versus="reading", ratio=rate / read)


def _best(reads: dict[int, list[float]]) -> int:
    return max(reads, key=lambda count: statistics.median(reads[count]))


def _read_rate(native: Library | None, stretch: Stretch, threads: int) -> float:
    _use_threads(native, threads)
    begin = time.perf_counter()
    if native is not None:
        native.read(stretch.bytes.data_ptr(), stretch.bytes.numel())
    else:
        stretch.bytes.view(torch.float32).sum()
    return stretch.bytes.numel() / (time.perf_counter() - begin) / 1e9


def _use_threads(native: Library | None, threads: int) -> None:
    apply_threads(threads)
    if native is not None:
        native.set_threads(threads)


def _use_tier(native: Library | None, tier: str) -> None:
    if native is None:
        return
    try:
        native.set_tier(tier)
    except NativeError as error:
        raise InvalidRequest(f"--tiers: {error}") from error
