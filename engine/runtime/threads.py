"""How many CPU threads the runtime uses."""

from __future__ import annotations

import psutil
import torch

from engine.errors import InvalidRequest
from engine.native.library import library
from engine.native.topology import topology

MOST_THREADS = 64
"""Allowed on any machine; on larger ones, as many as there are logical CPUs."""


def default_threads() -> int:
    """One per physical core that this process may use, less one where there are more than four
    (engine.native.topology). At once: no measurement. `benchmarks/host_threads.py` measures which
    count reads fastest."""
    return topology().threads


def apply_threads(wanted: int) -> int:
    """Set torch's threads and the native library's (0: the default) and return their number.

    The library's run on physical cores of the kinds that so many threads need, fast ones first.

    torch would really start as many as it is told, and thousands bring the whole machine to a halt.
    """
    if wanted < 0:
        raise InvalidRequest(f"threads is {wanted}; it must not be negative", param="threads")
    most = max(MOST_THREADS, psutil.cpu_count(logical=True) or 1)
    if wanted > most:
        raise InvalidRequest(
            f"threads is {wanted}; this machine's CPUs can use {most} at most",
            hint="0 takes about one thread a physical core.",
            param="threads",
        )
    threads = wanted or default_threads()
    torch.set_num_threads(threads)
    if (native := library()) is not None:
        native.set_cpus(topology().cpus(threads))
    return threads
