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


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_the_check_runs_clean(sanitizers: str, tmp_path: Path) -> None:
    source = ROOT / "engine" / "native"
    jobs = str(min(JOBS, os.cpu_count() or 1))
    for command in (
        ["cmake", "-S", str(source), "-B", str(tmp_path), f"-DHEADRACE_SANITIZE={sanitizers}"],
        ["cmake", "--build", str(tmp_path), "--parallel", jobs],
        [str(tmp_path / "headrace_check")],
    ):
        outcome = subprocess.run(command, capture_output=True, text=True, check=False)
        assert outcome.returncode == 0, (outcome.stdout + outcome.stderr)[-4000:]
    assert "portable is in order" in outcome.stdout
