"""The library under AddressSanitizer, UBSan and ThreadSanitizer. Compiles it twice: `full`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from installers.native import JOBS
from tests.project.checkout import ROOT

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="GCC's and Clang's sanitizers"),
    pytest.mark.skipif(shutil.which("cmake") is None, reason="needs CMake"),
]


ROUNDS = 100_000
"""Of the doorbell, and of late threads for each number of threads."""
STEPS = 300
"""Layer steps beside load, for each number of threads."""


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_the_checks_run_clean(sanitizers: str, tmp_path: Path) -> None:
    """Kernels, the coordinator with a thread that plays the device, and threads that are late: in
    the pool, then in layer steps."""
    source = ROOT / "engine" / "native"
    jobs = str(min(JOBS, os.cpu_count() or 1))
    check, doorbell, pool, steps = (
        str(tmp_path / f"headrace_{name}") for name in ("check", "doorbell", "pool", "steps")
    )
    outputs = []
    for command in (
        ["cmake", "-S", str(source), "-B", str(tmp_path), f"-DHEADRACE_SANITIZE={sanitizers}"],
        ["cmake", "--build", str(tmp_path), "--parallel", jobs],
        [check],
        [doorbell, str(ROUNDS)],
        [pool, str(ROUNDS)],
        [steps, str(STEPS)],
    ):
        outcome = subprocess.run(command, capture_output=True, text=True, check=False)
        assert outcome.returncode == 0, (outcome.stdout + outcome.stderr)[-4000:]
        outputs.append(outcome.stdout)
    assert "portable is in order" in outputs[2]
    assert "the doorbell is in order" in outputs[3]
    assert "late threads are in order" in outputs[4]
    assert "steps are in order" in outputs[5]
