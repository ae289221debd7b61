"""The files by which an app finds a server, and whose they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx2 as httpx
import psutil
import pytest

from engine import processes
from engine.errors import InvalidRequest
from engine.server.ownership import Ownership
from tests.server.running import headrace


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    return tmp_path


def files(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "servers").iterdir())


def record(home: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((home / "servers" / f"{os.getpid()}.json").read_text())
    return found


def test_files_come_and_go(home: Path) -> None:
    ownership = Ownership(host="127.0.0.1", port=1)
    ownership.publish()
    assert files(home) == [f"{os.getpid()}.json", f"{os.getpid()}.token"]
    assert record(home)["pid"] == os.getpid()
    assert (home / "servers" / f"{os.getpid()}.token").read_text() == ownership.token
    ownership.withdraw()
    assert files(home) == []
    ownership.withdraw()


@pytest.mark.parametrize("started", [0.0, None])
def test_files_of_running_servers_stay_and_those_of_killed_ones_go(
    home: Path, started: float | None
) -> None:
    """Killed are: a process that is gone, and one whose pid another process (this one) has now."""
    ownership = Ownership(host="127.0.0.1", port=1)
    ownership.publish()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    killed = record(home) | {"pid": gone.pid}
    if started is not None:
        killed = record(home) | {"started": started, "started_since_boot": 1e9}
    folder = home / "servers"
    (folder / "another.json").write_text(json.dumps(record(home) | {"port": 2}))
    (folder / "another.token").write_text("another's")
    (folder / "killed.json").write_text(json.dumps(killed))
    (folder / "killed.token").write_text("its token")
    (folder / "damaged.json").write_text("{")
    ownership.publish()
    kept = ["another.json", "another.token"]
    assert files(home) == sorted([f"{os.getpid()}.json", f"{os.getpid()}.token", *kept])
    ownership.withdraw()
    assert files(home) == kept


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
    assert record(home)["owner_pid"] == os.getppid()


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


def test_a_server_runs_without_a_record_where_its_folder_cannot_be_written(
    tiny_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    home = tmp_path / "file" / "home"
    process = headrace(
        *("serve", "--model", str(tiny_model), "--port", "0", "--threads", "1"),
        HEADRACE_HOME=str(home),
    )
    assert process.stdout is not None
    url = process.stdout.readline().split()[-1]
    assert httpx.get(f"{url}/health", trust_env=False).json()["model"] == tiny_model.name
    process.terminate()
    _, log = process.communicate(timeout=20)
    assert process.returncode == 0
    (warning,) = [line for line in log.splitlines() if "WARNING" in line]
    assert str(home) in warning and "HEADRACE_HOME" in warning
