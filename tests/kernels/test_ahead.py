"""Every kernel compiles without a GPU, for every architecture, within what its cards have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.kernels.gpu.ahead import ARCHITECTURES, MOST_SHARED_BYTES

LARGE = {80: 163 * 1024, 90: 227 * 1024}
"""Shared memory of a block where it is more than on consumer cards (CUDA C++ guide, table of
technical specifications)."""


@pytest.mark.timeout(600)  # the first time; Triton keeps what it compiled
@pytest.mark.parametrize(
    ("architectures", "shapes"),
    [
        pytest.param((86, 90), ["--once"], id="86-90"),
        pytest.param(ARCHITECTURES, [], id="all", marks=pytest.mark.full),
    ],
)
def test_kernels_compile_ahead_of_time_without_spills(
    architectures: tuple[int, ...], shapes: list[str]
) -> None:
    # A process of its own: in this one the interpreter may stand for Triton's compiler.
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    module = "engine.kernels.gpu.compile_all"
    command = [sys.executable, "-m", module, *shapes, *map(str, architectures)]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    taken = [json.loads(line) for line in done.stdout.splitlines()]
    assert {each["architecture"] for each in taken} == set(architectures)
    for each in taken:
        arch = each["architecture"]
        assert each["shared_bytes"] <= LARGE.get(arch, MOST_SHARED_BYTES), each
        assert arch in LARGE or each["spilled_bytes"] == 0, each
