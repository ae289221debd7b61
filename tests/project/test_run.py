"""`dev.py run` without a display: a real server, one streamed answer, an end without leftovers."""

from __future__ import annotations

import os
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


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    # What `dev.py run` does once the set-up is complete, so that a test never installs anything.
    code = (
        "import dev, sys; dev.setup = lambda: None; dev.venv_python = lambda: sys.executable;"
        "dev.window_problem = lambda: 'No window is wanted here.';"
        "sys.exit(dev.main(['run', *sys.argv[1:]]))"
    )
    program = subprocess.Popen(
        [sys.executable, "-c", code, "--port", "0"],
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
    started = psutil.Process(running.pid).children(recursive=True)
    assert started
    running.send_signal(number)
    assert running.wait(timeout=30) == 0
    _, alive = psutil.wait_procs(started, timeout=5)
    assert alive == []
