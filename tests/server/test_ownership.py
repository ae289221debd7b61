"""The files by which an app finds a server, and whose they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from engine import processes
from engine.errors import InvalidRequest
from engine.server.ownership import Ownership


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    return tmp_path


def files(home: Path) -> list[str]:
    return sorted(path.name for path in home.iterdir())


def test_files_come_and_go(home: Path) -> None:
    (home / "server.json").write_text("{ left behind by a crash")
    ownership = Ownership(host="127.0.0.1", port=1)
    ownership.publish()
    assert files(home) == ["control-token", "server.json"]
    assert json.loads((home / "server.json").read_text())["pid"] == os.getpid()
    assert (home / "control-token").read_text() == ownership.token
    ownership.withdraw()
    assert files(home) == []
    ownership.withdraw()


@pytest.mark.parametrize("state", ['{"pid": 1, "started": 2}', "[]", "", "{"])
def test_files_of_a_later_server_stay(home: Path, state: str) -> None:
    ownership = Ownership(host="127.0.0.1", port=1)
    ownership.publish()
    (home / "server.json").write_text(state)
    (home / "control-token").write_text("later")
    ownership.withdraw()
    assert (home / "server.json").read_text() == state
    assert (home / "control-token").read_text() == "later"


def test_tokens_differ_from_run_to_run() -> None:
    tokens = {Ownership(host="h", port=1).token for _ in range(3)}
    assert len(tokens) == 3 and all(len(token) >= 32 for token in tokens)


def test_only_a_running_process_can_own(home: Path) -> None:
    ownership = Ownership(host="h", port=1)
    ownership.publish()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for pid in (gone.pid, 0, -1, 2**40):
        with pytest.raises(InvalidRequest, match=f"no process {pid}"):
            ownership.adopt(pid)
    ownership.adopt(os.getppid())
    assert json.loads((home / "server.json").read_text())["owner_pid"] == os.getppid()


def test_a_process_is_known_again_by_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    start = processes.start_of(os.getpid())
    assert start is not None
    assert processes.is_running(os.getpid(), *start)
    assert processes.is_running(os.getpid(), start.wall + 1.0)
    assert not processes.is_running(os.getpid(), start.wall - 60.0)
    if sys.platform == "linux":
        boot = time.clock_gettime(time.CLOCK_BOOTTIME)
        age = time.time() - psutil.Process().create_time()
        assert start.since_boot == pytest.approx(boot - age, abs=2.0)
        assert not processes.is_running(os.getpid(), start.wall, start.since_boot + 1.0)


def test_setting_the_clock_does_not_orphan_a_server(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ownership = Ownership(host="h", port=1, owner_pid=os.getppid())
    true_time = psutil.Process.create_time
    for step in (1.0, 3600.0) if sys.platform == "linux" else (1.0,):
        monkeypatch.setattr(
            psutil.Process, "create_time", lambda self, step=step: true_time(self) + step
        )
        assert ownership._owner_lives()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no zombies")
def test_the_remains_of_a_process_do_not_run() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    start = processes.start_of(child.pid)
    assert start is not None and processes.is_running(child.pid, *start)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not processes.is_running(child.pid, *start)
    child.communicate()
