"""The whole set-up in a fresh clone, as a newcomer meets it. Installs packages, so it is `full`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.project.checkout import ROOT

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.name == "nt", reason="interrupts by signal"),
]


def python_outside_environments() -> str:
    return getattr(sys, "_base_executable", sys.executable)


def test_a_clone_sets_itself_up_after_an_interruption_and_starts_at_once_then(
    tmp_path: Path,
) -> None:
    clone = tmp_path / "Zwei Wörter" / "headrace"
    git = ["git", "-c", "safe.directory=*", "clone", "--quiet", str(ROOT), str(clone)]
    subprocess.run(git, check=True)
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    setup = [python_outside_environments(), "dev.py", "setup"]

    first = subprocess.Popen(
        setup, cwd=clone, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert first.stdout is not None
    for line in first.stdout:
        if line.startswith("Installing PyTorch"):
            break
    time.sleep(5)
    os.killpg(first.pid, 9)
    first.communicate()

    again = subprocess.run(setup, cwd=clone, env=environment, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert "making it anew" in again.stdout
    assert "Set-up complete" in again.stdout

    begin = time.monotonic()
    third = subprocess.run(setup, cwd=clone, env=environment, capture_output=True, text=True)
    assert time.monotonic() - begin < 3
    assert (third.returncode, third.stdout) == (0, "")

    program = clone / ".venv" / "bin" / "headrace"
    version = subprocess.run([program, "--version"], capture_output=True, text=True, cwd=tmp_path)
    assert version.stdout.startswith("headrace ")
