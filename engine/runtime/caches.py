"""How much the processor's last cache holds. What is read faster than memory comes from there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

UNKNOWN_BYTES = 64 << 20
"""Assumed where the system does not say: more than most desktop processors have."""


def last_cache_bytes(cpus: Path = Path("/sys/devices/system/cpu")) -> int:
    """Bytes of all caches of the last level together; 0 where the system does not say."""
    if sys.platform == "darwin":
        return _sysctl("hw.l3cachesize") or _sysctl("hw.l2cachesize")
    found: dict[tuple[int, str], int] = {}
    for index in cpus.glob("cpu[0-9]*/cache/index[0-9]*"):
        try:
            level = int((index / "level").read_text())
            size = re.fullmatch(r"(\d+)([KMG]?)", (index / "size").read_text().strip())
            # Cores that share a cache all name it.
            shared = (index / "shared_cpu_list").read_text().strip()
        except (OSError, ValueError):
            continue
        if size is not None:
            found[level, shared] = int(size[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[size[2]]
    last = max((level for level, _ in found), default=0)
    return sum(size for (level, _), size in found.items() if level == last)


def _sysctl(name: str) -> int:
    command = ["/usr/sbin/sysctl", "-n", name]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(outcome.stdout) if outcome.stdout.strip().isdigit() else 0
