"""Which number of threads, and on machines of several memory nodes which placement, is fastest.

Takes seconds and memory, so no start does it: `benchmarks/host_threads.py` shows it. Torch-free.
"""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from engine.native.library import Library
from engine.native.numa import interleave, keep_on
from engine.native.topology import Core, Topology

CLOSE = 0.02
"""A rate this near to the best counts as the best."""
ROUNDS = 3


@dataclass(frozen=True)
class Placement:
    """Weights spread over all nodes and read by all cores (`node` None), or on one node's memory
    and read by its cores."""

    node: int | None
    cores: tuple[Core, ...]

    @property
    def name(self) -> str:
        return "interleaved" if self.node is None else f"node {self.node}"


@dataclass(frozen=True)
class Sweep:
    """What was measured at one placement."""

    placement: Placement
    rates: dict[int, float]
    """By the number of threads, in bytes a second."""

    @property
    def threads(self) -> int:
        return smallest_near_best(self.rates)


def smallest_near_best(rates: dict[int, float]) -> int:
    """The smallest number of threads whose rate is within CLOSE of the best."""
    enough = (1 - CLOSE) * max(rates.values())
    return min(threads for threads, rate in rates.items() if rate >= enough)


def counts_to_try(cores: int) -> list[int]:
    """All of a small machine's; fewer than ten of a large one's, the last three among them."""
    if cores <= 8:
        return list(range(1, cores + 1))
    steps = {1, 2, *(cores * eighths // 8 for eighths in range(2, 9)), cores - 2, cores - 1}
    return sorted(steps)


def sweep_rates(
    call: Callable[[], object],
    nbytes: int,
    set_threads: Callable[[int], object],
    counts: Iterable[int],
) -> dict[int, float]:
    """The median rate of `call`, which reads `nbytes`, by number of threads. Counts take turns, so
    that other programs' load falls on all of them."""
    seconds: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(ROUNDS):
        for count, took in seconds.items():
            set_threads(count)
            begin = time.perf_counter()
            call()
            took.append(time.perf_counter() - begin)
    return {count: nbytes / sorted(took)[ROUNDS // 2] for count, took in seconds.items()}


def placements(topology: Topology) -> list[Placement]:
    """One on machines with one node."""
    nodes = sorted({core.node for core in topology.cores})
    local = [
        Placement(node, tuple(core for core in topology.cores if core.node == node))
        for node in nodes
    ]
    everywhere = Placement(None, topology.cores)
    return [everywhere, *local] if len(nodes) > 1 else [everywhere]


def sweep_reading(native: Library, topology: Topology, nbytes: int) -> list[Sweep]:
    """Plain reading of `nbytes` of memory (far more than the caches hold) by placement and number
    of threads, the fastest placement first. Threads and their CPUs are left as the last count was.

    Raises OSError if the kernel places no memory, MemoryError if there is none.
    """
    found = []
    for placement in placements(topology):
        with mmap.mmap(-1, nbytes) as memory:
            place = (ctypes.c_char * nbytes).from_buffer(memory)
            address = ctypes.addressof(place)
            if placement.node is not None:
                keep_on(address, nbytes, placement.node)
            else:
                interleave(address, nbytes, {core.node for core in topology.cores})
            ctypes.memset(address, 1, nbytes)
            native.set_cpus(_cpus(placement, topology))
            counts = counts_to_try(len(placement.cores))
            read = native.read
            rates = sweep_rates(lambda: read(address, nbytes), nbytes, native.set_threads, counts)  # noqa: B023
            found.append(Sweep(placement, rates))
            del place
    return sorted(found, key=lambda each: -max(each.rates.values()))


def _cpus(placement: Placement, topology: Topology) -> Sequence[int]:
    return [core.cpu for core in placement.cores] if topology.pinning else []
