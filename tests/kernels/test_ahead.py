"""Every kernel compiles for every architecture without a GPU, and fits the smallest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NO_SPILLS = (86, 89, 120)
FULL = [pytest.param(a, marks=pytest.mark.full) for a in (80, 89, 120)]

CHILD = """
import importlib, json, sys
from engine.kernels.gpu.ahead import resources
architecture, name = int(sys.argv[1]), sys.argv[2]
module = importlib.import_module("engine.kernels.gpu." + name)
cases = module.ahead_for(architecture) if hasattr(module, "ahead_for") else module.AHEAD
for case in cases:
    used = resources(case, architecture)
    print(json.dumps([case.name, used.spilled_bytes, used.shared_bytes]), flush=True)
"""


@pytest.mark.parametrize("architecture", [86, 90, *FULL])
@pytest.mark.parametrize("module", ["linear_few", "linear_many", "moe_decode", "moe_prefill"])
def test_compiles(module: str, architecture: int) -> None:
    """In a process of its own, since this one may interpret kernels."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(architecture), module],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    assert cases
    for name, spilled, shared in cases:
        if architecture in NO_SPILLS:
            assert spilled == 0, name
            assert shared <= 99 * 1024, name
