"""The files by which an app finds a server, and whose they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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
