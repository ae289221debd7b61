"""`dev.py run` where no window can open, as a process of its own: its answer, and its end."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil


@contextlib.contextmanager
def serving(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], **identity: Any
) -> Iterator[subprocess.Popen[str]]:
    """The started program; it and its children are gone in the end. `identity`: Popen's user."""
    program = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **identity,
    )
    # A reader that waits for a line that never comes is woken by the end of the program.
    alarm = threading.Timer(270, program.kill)
    alarm.start()
    try:
        yield program
    finally:
        alarm.cancel()
        if program.poll() is None:
            for process in psutil.Process(program.pid).children(recursive=True):
                process.kill()
            program.kill()
        program.communicate()


def printed(program: subprocess.Popen[str]) -> tuple[str, str]:
    """What it has said when it is ready to be ended, and the answer of the model in that."""
    assert program.stdout is not None
    lines = []
    for line in program.stdout:
        lines.append(line)
        if line.startswith("Ctrl-C"):
            break
    text = "".join(lines)
    assert "/v1/chat/completions" in text and "\n> " in text, text
    answer = text.split("\n> ")[1].split("\n", 1)[1]
    return text, answer.removesuffix("Ctrl-C ends Headrace.\n").strip()


def end_with_everything(program: subprocess.Popen[str], number: signal.Signals) -> None:
    """The signal ends it in order, and nothing that it started is left."""
    started = psutil.Process(program.pid).children(recursive=True)
    assert started
    program.send_signal(number)
    assert program.wait(timeout=60) == 0
    _, alive = psutil.wait_procs(started, timeout=30)
    assert alive == []
