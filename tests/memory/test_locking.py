"""Locked memory is counted by the system, and its limit is named where there is one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.memory.arena import HostArena
from tests.project.checkout import ROOT

MIB = 1 << 20

LIMITED = """
import ctypes, mmap, os, resource
from engine.memory.locking import lock_memory
resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 20, 1 << 20))
if os.geteuid() == 0:
    os.setuid(65534)  # root may lock what it likes
memory = mmap.mmap(-1, 4 << 20)
print(lock_memory(ctypes.addressof(ctypes.c_char.from_buffer(memory)), 4 << 20))
"""


def locked_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmLck"))


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's count")
def test_locked_memory_is_locked_until_the_arena_ends() -> None:
    before = locked_bytes()
    arena = HostArena(MIB)
    arena.commit(MIB)
    refusal = arena.lock()
    if refusal:
        pytest.skip(refusal)
    assert locked_bytes() - before == MIB
    del arena
    assert locked_bytes() == before


@pytest.mark.skipif(sys.platform != "linux", reason="sets Linux's limit")
def test_the_limit_is_named() -> None:
    outcome = subprocess.run(
        [sys.executable, "-c", LIMITED], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert outcome.returncode == 0, outcome.stderr
    assert "this user may lock 0.001 GB (ulimit -l is 1024)" in outcome.stdout


def test_an_arena_of_large_pages_holds_and_releases_like_any_other() -> None:
    arena = HostArena(9 * MIB, large=True)
    arena.commit(9 * MIB)
    view = arena.view(0, (9 * MIB,), torch.uint8)
    assert int(view.sum()) == 0
    view.fill_(3)
    arena.release(5 * MIB)
    assert bool((arena.view(0, (4 * MIB,), torch.uint8) == 3).all())


@pytest.mark.skipif(sys.platform == "win32", reason="Linux's file")
def test_pages_set_aside_and_not_promised_are_free(tmp_path: Path) -> None:
    from engine.memory.host_pages import huge_pages

    facts = tmp_path / "meminfo"
    facts.write_text(
        "MemTotal: 1000 kB\nHugePages_Total: 9\nHugePages_Free: 7\n"
        "HugePages_Rsvd: 2\nHugepagesize: 2048 kB\n"
    )
    assert huge_pages(facts) == (2 * MIB, 5)
    assert huge_pages(tmp_path / "absent") == (0, 0)
