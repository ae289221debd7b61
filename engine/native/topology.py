"""Physical cores that this process may use, and which of them the native threads take. Torch-free.

A thread a core: two on one core's siblings share the load ports that a memory-bound kernel needs.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

SIMILAR = 0.8
"""Cores of at least this share of the fastest one's capacity or clock are performance cores."""
ROOMY = 4
"""With more cores than this, one is left to the rest of the PC."""
_ROOT = Path("/")


@dataclass(frozen=True, order=True)
class Core:
    """A physical core. Sorted, the fastest come first."""

    rank: int
    """0 for performance cores, 1 for efficiency cores."""
    node: int
    """Of its memory."""
    cpu: int
    """The one of its logical CPUs that threads use, by the system's number."""


@dataclass(frozen=True)
class Topology:
    cores: tuple[Core, ...]
    """Those that the process may use, the fastest first; at least one."""
    quota: float | None = None
    """CPUs' worth of time that the process may use, where that is limited."""
    pinning: bool = True
    """Whether the system keeps threads on the cores that they are given."""

    @property
    def usable(self) -> int:
        """How many cores the process can keep busy, by its time too."""
        if self.quota is None:
            return len(self.cores)
        return min(len(self.cores), max(1, int(self.quota)))

    @property
    def threads(self) -> int:
        """How many threads compute, the caller's included: one a core. With more than four cores
        one is left to the rest of the PC; the caller's is the coordinator's, where there is one.
        """
        usable = self.usable
        return usable - 1 if usable > ROOMY else usable

    def cpus(self, threads: int) -> list[int]:
        """Where so many threads run: a CPU of each core of the ranks that they need. Empty
        (anywhere) if the system does not pin, or has fewer cores."""
        if not self.pinning or threads > len(self.cores):
            return []
        slowest = self.cores[threads - 1].rank
        return [core.cpu for core in self.cores if core.rank <= slowest]


def topology() -> Topology:
    """This process's, as it is now. Where the system does not tell: what psutil counts."""
    quota, pinning = None, True
    if sys.platform == "linux":
        cores, quota = linux_cores(_allowed(), _ROOT), linux_quota(_ROOT)
    elif sys.platform == "win32":
        cores = windows_cores(_windows_records(), _allowed())
    else:
        cores, pinning = (mac_cores(_sysctl()) if sys.platform == "darwin" else []), False
    if not cores:
        count = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
        cores, pinning = [Core(0, 0, cpu) for cpu in range(count)], False
    return Topology(tuple(sorted(cores)), quota, pinning)


def _allowed() -> set[int]:
    """Logical CPUs; on Linux and Windows."""
    return set(psutil.Process().cpu_affinity() or ())


def linux_cores(allowed: set[int], root: Path = _ROOT) -> list[Core]:
    """From /sys under `root`; empty if it says nothing. Of a core's siblings the first one counts
    that is allowed."""
    folder = root / "sys/devices/system/cpu"
    efficient = cpu_list(_text(root / "sys/devices/cpu_atom/cpus"))
    nodes = linux_nodes(root)
    first: dict[str, int] = {}
    for cpu in sorted(allowed):
        topology = folder / f"cpu{cpu}" / "topology"
        siblings = _text(topology / "core_cpus_list") or _text(topology / "thread_siblings_list")
        if siblings:
            first.setdefault(siblings, cpu)
    speeds = {cpu: _speed(folder / f"cpu{cpu}") for cpu in first.values()}
    fastest = max(speeds.values(), default=0)
    cores = []
    for cpu, speed in speeds.items():
        slow = cpu in efficient if efficient else speed < SIMILAR * fastest
        node = next((number for number, cpus in nodes.items() if cpu in cpus), 0)
        cores.append(Core(int(slow), node, cpu))
    return cores


def linux_nodes(root: Path = _ROOT) -> dict[int, set[int]]:
    """The logical CPUs of each node that has memory of its own."""
    folder = root / "sys/devices/system/node"
    numbers = cpu_list(_text(folder / "has_memory") or _text(folder / "online"))
    return {n: cpu_list(_text(folder / f"node{n}" / "cpulist")) for n in sorted(numbers)}


def linux_quota(root: Path = _ROOT) -> float | None:
    """CPUs' worth of time by the control groups of either version; the tightest one counts."""
    limits = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        group = mount / path.strip("/")
        for folder in (group, *group.parents):
            if controllers:
                quota = _text(folder / "cpu.cfs_quota_us")
                period = _text(folder / "cpu.cfs_period_us")
            else:
                quota, _, period = _text(folder / "cpu.max").partition(" ")
            if quota.isdigit() and period.isdigit() and int(period) > 0:
                limits.append(int(quota) / int(period))
            if folder == mount:
                break
    return min(limits, default=None)


def cpu_list(text: str) -> set[int]:
    """`0-3,8` as the kernel writes it."""
    numbers: set[int] = set()
    for part in text.split(","):
        low, _, high = part.strip().partition("-")
        if low.isdigit():
            numbers.update(range(int(low), int(high or low) + 1))
    return numbers


def windows_cores(records: bytes, allowed: set[int]) -> list[Core]:
    """From GetLogicalProcessorInformationEx's records of cores: flags, efficiency class (greater is
    faster), number of groups, then mask and group. CPUs are numbered group * 64 + bit; `allowed` is
    about the first group."""
    found: list[tuple[int, int]] = []
    at = 0
    while at + 8 <= len(records):
        _, size = struct.unpack_from("<II", records, at)
        speed, groups = records[at + 9], struct.unpack_from("<H", records, at + 30)[0]
        for place in range(groups):
            mask, group = struct.unpack_from("<QH", records, at + 32 + 16 * place)
            cpus = [group * 64 + bit for bit in range(64) if mask >> bit & 1]
            usable = [cpu for cpu in cpus if group > 0 or not allowed or cpu in allowed]
            if usable:
                found.append((speed, usable[0]))
                break
        at += max(size, 8)
    fastest = max((speed for speed, _ in found), default=0)
    return [Core(int(speed < fastest), 0, cpu) for speed, cpu in found]


def mac_cores(sysctl: dict[str, int]) -> list[Core]:
    """By performance level, 0 the fastest. The numbers of CPUs mean nothing: macOS does not pin."""
    levels = sysctl.get("hw.nperflevels", 0)
    counts = [sysctl.get(f"hw.perflevel{level}.physicalcpu", 0) for level in range(levels)]
    if not sum(counts):
        counts = [sysctl.get("hw.physicalcpu", 0) or 1]
    ranks = [min(level, 1) for level, count in enumerate(counts) for _ in range(count)]
    return [Core(rank, 0, cpu) for cpu, rank in enumerate(ranks)]


def _speed(folder: Path) -> int:
    text = _text(folder / "cpu_capacity") or _text(folder / "cpufreq" / "cpuinfo_max_freq")
    return int(text) if text.isdigit() else 0


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _windows_records() -> bytes:
    kernel: Any = getattr(ctypes, "windll").kernel32  # noqa: B009
    call = kernel.GetLogicalProcessorInformationEx
    length = ctypes.c_uint32()
    call(0, None, ctypes.byref(length))
    buffer = ctypes.create_string_buffer(length.value)
    return buffer.raw if call(0, buffer, ctypes.byref(length)) else b""


def _sysctl() -> dict[str, int]:
    libc = ctypes.CDLL(None)
    names = ["hw.nperflevels", "hw.physicalcpu"]
    names += [f"hw.perflevel{level}.physicalcpu" for level in range(4)]
    values = {}
    for name in names:
        value, size = ctypes.c_int32(), ctypes.c_size_t(4)
        if libc.sysctlbyname(name.encode(), ctypes.byref(value), ctypes.byref(size), None, 0) == 0:
            values[name] = value.value
    return values
