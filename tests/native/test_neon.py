"""The library for aarch64, cross-compiled and emulated: NEON against the portable tier."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from installers.native import JOBS
from tests.project.checkout import ROOT

COMPILER = "aarch64-linux-gnu-g++"
SYSTEM = "/usr/aarch64-linux-gnu"
EMULATOR = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(platform.machine() == "aarch64", reason="tests/native run NEON itself here"),
    pytest.mark.skipif(shutil.which("cmake") is None, reason="needs CMake"),
    pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"needs {COMPILER}"),
    pytest.mark.skipif(EMULATOR is None, reason="needs qemu-aarch64"),
]


def run(*command: str | Path) -> str:
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, (outcome.stdout + outcome.stderr)[-4000:]
    return outcome.stdout


def test_the_check_passes_under_emulation(tmp_path: Path) -> None:
    target = ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64"]
    target += [f"-DCMAKE_CXX_COMPILER={COMPILER}", "-DHEADRACE_CHECK=ON"]
    run("cmake", "-S", ROOT / "engine" / "native", "-B", tmp_path, *target)
    run("cmake", "--build", tmp_path, "--parallel", str(min(JOBS, os.cpu_count() or 1)))
    assert EMULATOR is not None
    said = run(EMULATOR, "-L", SYSTEM, tmp_path / "headrace_check", "quick")
    assert said.splitlines() == ["portable is in order", "neon is in order"]
