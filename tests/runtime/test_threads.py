from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from engine.errors import InvalidRequest
from engine.native.topology import topology
from engine.runtime.threads import apply_threads, default_threads


def test_the_default_is_the_topology_s() -> None:
    assert default_threads() == topology().threads


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux where its threads run")
def test_the_library_s_threads_run_on_cores_that_may_be_used() -> None:
    program = (
        "import os, time, torch; from pathlib import Path;"
        "from engine.kernels.linear import linear; from engine.formats.weight import StoredWeight;"
        "from engine.native.library import library; from engine.runtime.threads import *;"
        "apply_threads(2); native = library();"
        "before = os.sched_getaffinity(0);"
        "w = StoredWeight('float32', (512, 512), {'weight': torch.randn(512, 512)});"
        "[linear(torch.ones(64, 512), w, None) for _ in range(20)]; time.sleep(0.2);"
        "masks = [os.sched_getaffinity(int(t.name)) for t in Path('/proc/self/task').iterdir()];"
        "print(native is None or native.placed, before == os.sched_getaffinity(0));"
        "print(all(mask <= before for mask in masks))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100
    )
    placed = "1" if len(topology().cores) > 1 else "0"
    assert done.stdout.split() in ([placed, "True", "True"], ["True"] * 3), done.stderr


def test_the_option_wins_and_zero_is_the_default() -> None:
    program = (
        "import torch; from engine.runtime.threads import *;"
        "print(apply_threads(3), torch.get_num_threads());"
        "print(apply_threads(0) == default_threads() == torch.get_num_threads())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100
    )
    assert done.stdout.split() == ["3", "3", "True"], done.stderr
    assert torch.get_num_threads() >= 1


def test_a_negative_number_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="-2"):
        apply_threads(-2)


def test_more_than_the_machine_can_use_is_refused() -> None:
    before = torch.get_num_threads()
    with pytest.raises(InvalidRequest, match="100000") as error:
        apply_threads(100_000)
    assert error.value.param == "threads"
    assert torch.get_num_threads() == before
