"""`dev.py run` without a display: a real server, one streamed answer, an end without leftovers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.project.checkout import ROOT

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


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    program = subprocess.Popen(
        [sys.executable, "-c", RUN, "--port", "0"],
        cwd=ROOT,
        env=os.environ | {"HEADRACE_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    # A reader that waits for a line that never comes is woken by the end of the program.
    alarm = threading.Timer(270, program.kill)
    alarm.start()
    yield program
    alarm.cancel()
    if program.poll() is None:
        for process in psutil.Process(program.pid).children(recursive=True):
            process.kill()
        program.kill()
    program.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_it_answers_and_ends_with_everything_it_started(
    running: subprocess.Popen[str], number: signal.Signals
) -> None:
    assert running.stdout is not None
    lines = []
    for line in running.stdout:
        lines.append(line)
        if line.startswith("Ctrl-C"):
            break
    text = "".join(lines)
    assert "/v1/chat/completions" in text, text
    answer = text.split("\n> ")[1].split("\n", 1)[1].removesuffix("Ctrl-C ends Headrace.\n")
    assert answer.strip(), text
    assert re.search(r"The model answers \d+\.\d s after the start", text), text
    assert " INFO " not in text, text
    started = psutil.Process(running.pid).children(recursive=True)
    assert started
    running.send_signal(number)
    assert running.wait(timeout=30) == 0
    _, alive = psutil.wait_procs(started, timeout=5)
    assert alive == []


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
