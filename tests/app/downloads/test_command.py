"""`headrace download`, as a person runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.core.downloads.errors import DownloadError
from app.core.downloads.layout import Repository
from app.core.downloads.store import claimed
from tests.app.downloads.checks import check_whole, repository
from tests.app.downloads.fake_hub import FakeHub, Fault
from tests.project.checkout import ROOT

FIRST = "model-00001-of-00002.safetensors"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "app.cli", "download", *arguments]


@pytest.fixture(autouse=True)
def endpoint(monkeypatch: pytest.MonkeyPatch, hub: FakeHub) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)


def download(hub: FakeHub, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_it_prints_the_path_to_load(hub: FakeHub, tmp_path: Path) -> None:
    said = download(hub, hub.repo)
    cache = tmp_path / "hf" / "hub"
    assert said.returncode == 0, said.stderr
    assert said.stdout.strip() == str(repository(cache) / "snapshots" / hub.commit)
    assert "100 %" not in said.stderr.splitlines()[0]
    assert len(list((repository(cache) / "blobs").iterdir())) == 5


def test_it_asks_which_model_of_several(hub: FakeHub, tmp_path: Path) -> None:
    for name in ("m-Q4_K_M.gguf", "m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf"):
        hub.files[name] = hub.promised[name] = name.encode() * 100
        hub.lfs.add(name)
    for name in [name for name in hub.files if name.endswith(".safetensors")]:
        del hub.files[name], hub.promised[name]
    said = download(hub, hub.repo, "--to", str(tmp_path / "new"))
    assert said.returncode == 1
    assert "--files 'm-Q4_K_M.gguf'  1.27 KiB" in said.stderr
    assert "--files 'm-Q8_0-*.gguf'  5.08 KiB" in said.stderr
    said = download(hub, hub.repo, "--to", str(tmp_path / "new"), "--files", "*q8_0*")
    names = ["m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf"]
    assert said.returncode == 0, said.stderr
    assert Path(said.stdout.strip()).name == names[0]
    check_whole(hub, tmp_path / "new", names)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT to send")
def test_interrupted_it_says_how_to_go_on(hub: FakeHub, root: Path) -> None:
    hub.faults[FIRST] = Fault(stall=2_000_000)
    running = subprocess.Popen(
        command(hub.repo, "--to", str(root)), cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    part = repository(root) / ".headrace" / f"{hub.digest(FIRST)}.part"
    while not part.exists() or part.stat().st_size < 2_000_000:
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    said = running.communicate()[1]
    assert running.returncode == 130
    assert "The same command goes on" in said
    hub.faults.clear()
    assert download(hub, hub.repo, "--to", str(root)).returncode == 0
    assert hub.served(FIRST)[-1]["Range"] == f"bytes={1 << 20}-"


def test_a_worker_ends_with_the_one_that_started_it(hub: FakeHub, root: Path) -> None:
    hub.faults[FIRST] = Fault(stall=2_000_000)
    running = subprocess.Popen(
        command(hub.repo, "--to", str(root)), cwd=ROOT, stderr=subprocess.DEVNULL
    )
    part = repository(root) / ".headrace" / f"{hub.digest(FIRST)}.part"
    while not part.exists() or part.stat().st_size < 2_000_000:
        time.sleep(0.02)
    running.kill()
    running.wait()
    place = Repository(root, hub.repo)
    while True:  # until the worker lets go of the model
        try:
            with claimed(place):
                break
        except DownloadError as error:
            assert error.code == "busy"
            time.sleep(0.05)
    hub.faults.clear()
    assert download(hub, hub.repo, "--to", str(root)).returncode == 0


def test_what_fails_says_so(hub: FakeHub, root: Path) -> None:
    said = download(hub, "org/none", "--to", str(root))
    assert said.returncode == 1
    assert "error: org/none does not exist on 127.0.0.1" in said.stderr
    assert "hint: " in said.stderr
