"""Which cores there are, from what the systems say about machines of many kinds."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

import psutil
import pytest

from engine.native.topology import (
    Core,
    Topology,
    cpu_list,
    linux_cores,
    linux_nodes,
    linux_quota,
    mac_cores,
    topology,
    windows_cores,
)


def machine(root: Path, cores: list[tuple[str, str]], speed: str = "cpu_capacity") -> Path:
    """A /sys of cores, each its siblings and its speed."""
    for siblings, value in cores:
        for cpu in cpu_list(siblings):
            folder = root / f"sys/devices/system/cpu/cpu{cpu}"
            for name, text in ((f"{speed}", value), ("topology/core_cpus_list", siblings)):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(text + "\n")
    return root


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text + "\n")


def test_siblings_are_left_alone(tmp_path: Path) -> None:
    machine(tmp_path, [(f"{core},{core + 8}", "1024") for core in range(8)])
    assert [c.cpu for c in linux_cores(set(range(16)), tmp_path)] == list(range(8))
    assert [c.cpu for c in linux_cores({9, 10, 2, 11}, tmp_path)] == [2, 9, 11]


@pytest.mark.parametrize("by", ["cpu_capacity", "cpufreq/cpuinfo_max_freq", "cpu_atom"])
def test_performance_cores_come_first(tmp_path: Path, by: str) -> None:
    """Two performance cores with siblings (one may boost higher), numbered after four others."""
    fast, faster, slow = ("1000", "1024", "640") if by != "cpu_atom" else ("", "", "")
    cores = [(str(cpu), slow) for cpu in range(4)] + [("4-5", fast), ("6-7", faster)]
    machine(tmp_path, cores, by if by != "cpu_atom" else "cpu_capacity")
    if by == "cpu_atom":
        write(tmp_path, "sys/devices/cpu_atom/cpus", "0-3")
    found = sorted(linux_cores(set(range(8)), tmp_path))
    assert [(c.cpu, c.rank) for c in found] == [(4, 0), (6, 0), (0, 1), (1, 1), (2, 1), (3, 1)]
    six = Topology(tuple(found))
    assert six.cpus(1) == six.cpus(2) == [4, 6]
    assert six.cpus(3) == [4, 6, 0, 1, 2, 3]
    assert six.cpus(7) == []
    assert Topology(tuple(found), pinning=False).cpus(2) == []


def test_no_sys_means_no_cores(tmp_path: Path) -> None:
    assert linux_cores({0, 1}, tmp_path) == []


@pytest.mark.parametrize(
    ("cores", "quota", "threads"),
    [
        *((1, None, 1), (2, None, 2), (4, None, 4), (5, None, 4), (16, None, 15)),
        *((16, 4.0, 4), (16, 2.5, 2), (16, 0.5, 1), (16, 8.0, 7), (2, 8.0, 2)),
    ],
)
def test_threads_of_a_machine(cores: int, quota: float | None, threads: int) -> None:
    assert Topology(tuple(Core(0, 0, cpu) for cpu in range(cores)), quota).threads == threads


def test_quotas_of_both_versions(tmp_path: Path) -> None:
    assert linux_quota(tmp_path) is None
    write(tmp_path, "proc/self/cgroup", "0::/user/app")
    write(tmp_path, "sys/fs/cgroup/user/app/cpu.max", "max 100000")
    assert linux_quota(tmp_path) is None
    write(tmp_path, "sys/fs/cgroup/user/cpu.max", "350000 100000")
    write(tmp_path, "sys/fs/cgroup/cpu.max", "800000 100000")
    assert linux_quota(tmp_path) == 3.5
    write(tmp_path, "proc/self/cgroup", "3:cpu,cpuacct:/box\n2:cpuset:/box\n0::/user/app")
    write(tmp_path, "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "200000")
    write(tmp_path, "sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000")
    assert linux_quota(tmp_path) == 2.0
    write(tmp_path, "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "-1")
    assert linux_quota(tmp_path) == 3.5


def test_nodes(tmp_path: Path) -> None:
    machine(tmp_path, [(str(cpu), "1024") for cpu in range(4)])
    write(tmp_path, "sys/devices/system/node/has_memory", "0-1")
    write(tmp_path, "sys/devices/system/node/node0/cpulist", "0,2")
    write(tmp_path, "sys/devices/system/node/node1/cpulist", "1,3")
    assert linux_nodes(tmp_path) == {0: {0, 2}, 1: {1, 3}}
    assert [c.node for c in linux_cores({0, 1, 2, 3}, tmp_path)] == [0, 1, 0, 1]


def record(efficiency: int, masks: list[tuple[int, int]]) -> bytes:
    """PROCESSOR_RELATIONSHIP as Windows' documentation lays it out."""
    size = 32 + 16 * len(masks)
    head = struct.pack("<IIBB20xH", 0, size, 1, efficiency, len(masks))
    return head + b"".join(struct.pack("<QH6x", mask, group) for group, mask in masks)


def test_windows_records() -> None:
    records = record(1, [(0, 0b11)]) + record(0, [(0, 0b100)]) + record(1, [(1, 0b1000)])
    assert windows_cores(records, {0, 1, 2}) == [Core(0, 0, 0), Core(1, 0, 2), Core(0, 0, 67)]
    assert windows_cores(records, {1}) == [Core(0, 0, 1), Core(0, 0, 67)]
    assert windows_cores(b"", {0}) == []


def test_macs() -> None:
    levels = {"hw.nperflevels": 2, "hw.perflevel0.physicalcpu": 4, "hw.perflevel1.physicalcpu": 2}
    assert [core.rank for core in mac_cores(levels)] == [0, 0, 0, 0, 1, 1]
    assert len(mac_cores({"hw.physicalcpu": 2})) == 2
    assert len(mac_cores({})) == 1


def test_this_machine() -> None:
    here = topology()
    assert 1 <= here.threads <= len(here.cores) <= (psutil.cpu_count() or 1)
    assert list(here.cores) == sorted(here.cores)
    if sys.platform == "linux":
        assert {core.cpu for core in here.cores} <= os.sched_getaffinity(0)
