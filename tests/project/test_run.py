"""`dev.py run` without a display: a real server, one streamed answer, an end without leftovers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.checkout import ROOT
from tests.project.serving import end_with_everything, printed, serving

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="POSIX signals end the program"),
    pytest.mark.timeout(300),
]

# What `dev.py run` does once the set-up is complete, so that a test never installs anything.
RUN = """
import sys
import dev
dev.setup = lambda: None
dev.venv_python = lambda: sys.executable
dev.window_problem = lambda: "No window is wanted here."
sys.exit(dev.main(["run", *sys.argv[1:]]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_it_answers_and_ends_with_everything_it_started(
    tmp_path: Path, number: signal.Signals
) -> None:
    command = [sys.executable, "-c", RUN, "--port", "0"]
    environment = os.environ | {"HEADRACE_HOME": str(tmp_path)}
    with serving(command, ROOT, environment) as program:
        text, answer = printed(program)
        assert answer, text
        assert re.search(r"The model answers \d+\.\d s after the start", text), text
        assert " INFO " not in text, text
        end_with_everything(program, number)


def test_a_model_that_does_not_load_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    done = subprocess.run(
        [sys.executable, "-c", RUN, "--port", "0", "--model", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"HEADRACE_HOME": str(tmp_path / "home")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "Traceback" not in done.stdout
    assert done.stdout.count("holds no weights") == 1, done.stdout
    assert done.stdout.endswith("dev.py: The model did not load; the line above says why.\n")
