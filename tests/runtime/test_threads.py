from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest
import torch

from engine.errors import InvalidRequest
from engine.runtime.threads import apply_threads, default_threads


@pytest.mark.parametrize(
    ("physical", "logical", "allowed", "threads"),
    [(8, 16, 16, 8), (8, 16, 4, 2), (8, 16, 3, 2), (8, 8, 5, 5), (4, 8, 1, 1), (None, 6, 6, 6)],
)
def test_one_thread_a_core_that_may_be_used(
    monkeypatch: pytest.MonkeyPatch, physical: int | None, logical: int, allowed: int, threads: int
) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: logical_or(logical))

    def logical_or(wanted: bool) -> int | None:
        return logical if wanted else physical

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(allowed)), raising=False)
    assert default_threads() == threads


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
