"""How many CPU threads the runtime uses."""

from __future__ import annotations

import os

import psutil
import torch

from engine.errors import InvalidRequest

MOST_THREADS = 64
"""Allowed on any machine; on larger ones, as many as there are logical CPUs."""


def default_threads() -> int:
    """One per physical core that this process may run on.

    Two threads on one core's siblings share the load ports that a memory-bound kernel needs.
    """
    logical = psutil.cpu_count(logical=True) or 1
    physical = psutil.cpu_count(logical=False) or logical
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else logical
    siblings = max(1, logical // physical)
    return max(1, min(physical, -(-allowed // siblings)))


def apply_threads(wanted: int) -> int:
    """Set torch's threads (0: the default) and return their number.

    torch would really start as many as it is told, and thousands bring the whole machine to a halt.
    """
    if wanted < 0:
        raise InvalidRequest(f"threads is {wanted}; it must not be negative", param="threads")
    most = max(MOST_THREADS, psutil.cpu_count(logical=True) or 1)
    if wanted > most:
        raise InvalidRequest(
            f"threads is {wanted}; this machine's CPUs can use {most} at most",
            hint="0 takes one thread a physical core.",
            param="threads",
        )
    threads = wanted or default_threads()
    torch.set_num_threads(threads)
    return threads
