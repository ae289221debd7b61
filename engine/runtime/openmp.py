"""How torch's worker threads wait for each other. Must run before torch is imported."""

from __future__ import annotations

import os


def wait_without_spinning() -> None:
    """Let OpenMP threads sleep at a barrier instead of spinning; a user's own setting stands.

    A spinning thread burns the core that the thread it waits for needs: where other programs load
    every core, decoding comes nearly to a halt (benchmarks/busy_machine.py measures it). Linux's
    torch has GNU's OpenMP (the first name), Windows' and macOS' have LLVM's (both names).
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("KMP_BLOCKTIME", "0")
