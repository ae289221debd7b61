"""Ctrl-C while the environment is made: one sentence, nobody left at work, the next start mends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from installers import environment
from tests.project.checkout import ROOT

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="signals of a terminal are those of POSIX"),
    pytest.mark.timeout(120),
]

# The real set-up of another folder, which never comes to pip. What compiles meanwhile has no end.
SETUP = """
import sys
from pathlib import Path
import dev
from installers import environment
root = Path(sys.argv[1])
environment.ROOT, environment.VENV = root, root / ".venv"
environment.RECORD, environment.GUARD = root / ".venv" / "record.json", root / ".venv" / "guard"
endless = [sys.executable, "-c", "import time; time.sleep(600)"]
environment.compiling = lambda: environment.running_apart(endless, root)
sys.exit(dev.main(["setup"]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_an_interruption_while_the_environment_is_made(
    tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").touch()
    setup = subprocess.Popen(
        [sys.executable, "-c", SETUP, str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # a group, as a terminal interrupts it
    )
    assert setup.stdout is not None
    assert "Making the environment" in setup.stdout.readline()
    family: list[psutil.Process] = []
    # Until Python of the new environment is at work in it.
    while not (tmp_path / ".venv" / "bin" / "python").exists() or not family:
        family = psutil.Process(setup.pid).children(recursive=True)
        time.sleep(0.02)
    os.killpg(setup.pid, number)
    said = setup.communicate(timeout=60)[0]
    assert setup.returncode == 130
    assert "The set-up is interrupted" in said and "Traceback" not in said
    assert psutil.wait_procs(family, timeout=10)[1] == []
    record = json.loads((tmp_path / ".venv" / "record.json").read_text())
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    assert environment.is_unusable(record, environment.torch_flavour())


def test_emptying_that_is_interrupted_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record that says `unusable` outlives everything else in the environment."""
    monkeypatch.setattr(environment, "VENV", tmp_path)
    monkeypatch.setattr(environment, "RECORD", tmp_path / "record.json")
    monkeypatch.setattr(environment, "GUARD", tmp_path / "guard")
    for name in ("a", "record.json", "z"):
        (tmp_path / name).touch()
    (tmp_path / "lib").mkdir()
    environment.empty_venv()
    assert [entry.name for entry in tmp_path.iterdir()] == ["record.json"]


@pytest.mark.parametrize("completed", [False, pytest.param(True, marks=pytest.mark.full)])
def test_an_environment_without_pip_is_seen_and_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, completed: bool
) -> None:
    """As `python -m venv` leaves it when it is cut short, by hand or before there was a record."""
    monkeypatch.setattr(environment, "VENV", tmp_path / ".venv")
    command = [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / ".venv")]
    subprocess.run(command, check=True)
    assert not environment.has_pip()
    if completed:
        environment.make_venv()
        assert environment.has_pip()
