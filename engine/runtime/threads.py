"""How many CPU threads the runtime uses."""

from __future__ import annotations

import os

import psutil
import torch

from engine.errors import InvalidRequest


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
    """Set torch's threads (0: the default) and return their number."""
    if wanted < 0:
        raise InvalidRequest(f"threads is {wanted}; it must not be negative", param="threads")
    threads = wanted or default_threads()
    torch.set_num_threads(threads)
    return threads
