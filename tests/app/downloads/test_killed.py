"""A worker that is killed, stopped, or left alone, at any point; and disks that take no more."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from app.core.downloads.process import Worker, encode, look_up
from app.core.downloads.records import (
    Event,
    Fetch,
    LookUp,
    Network,
    Planned,
    Progress,
    Ready,
    Request,
    Stopped,
)
from tests.app.downloads.checks import QUICK, check_not_ready, check_whole, code, repository
from tests.app.downloads.fake_hub import FakeHub, Fault

FIRST = "model-00001-of-00002.safetensors"
WANTED = ["README.md", "config.json", "empty.txt", FIRST, "model-00002-of-00002.safetensors"]
Fetcher = Callable[..., list[Event]]


def task(hub: FakeHub, root: Path) -> Fetch:
    request = Request(repo=hub.repo, root=str(root))
    return Fetch(request=request, network=Network(endpoint=hub.endpoint), pace=QUICK)


def events_of(worker: Worker) -> list[Event]:
    found = []
    while line := worker.line():
        found.append(msgspec.json.decode(line, type=Event))
    return found


def kill_and_resume(hub: FakeHub, root: Path, kills: int, seed: int) -> None:
    """Kill workers at random moments until so many are killed; then let one end."""
    chance = random.Random(seed)
    for _ in range(kills):
        sent = hub.sent
        with Worker(encode(task(hub, root))) as worker:
            point = chance.randrange(3)
            if point == 0:
                time.sleep(chance.uniform(0.0, 1.0))  # while it starts, checks, or asks
            elif point == 1:
                # In the midst of bytes; fewer are left from kill to kill, which then comes late.
                target = sent + chance.randrange(1, 2_000_000)
                while hub.sent < target and worker.running:
                    time.sleep(0.002)
            else:
                # Around the end: links, refs, manifest.
                own = repository(root) / ".headrace"
                while worker.running and not list(own.glob("*.links")):
                    time.sleep(0.0005)
            worker.kill()
        if list(root.rglob("*.ready")):
            check_snapshot(hub, root)
        else:
            for blob in (repository(root) / "blobs").glob("*"):
                assert blob.read_bytes() in hub.promised.values()
            if (repository(root) / "snapshots" / hub.commit).exists():
                check_snapshot(hub, root)
    with Worker(encode(task(hub, root))) as worker:
        assert isinstance(events_of(worker)[-1], Ready)
    check_whole(hub, root, WANTED)


def check_snapshot(hub: FakeHub, root: Path) -> None:
    """A snapshot appears at once and whole."""
    snapshot = repository(root) / "snapshots" / hub.commit
    for name in WANTED:
        assert (snapshot / name).read_bytes() == hub.promised[name], name


@pytest.fixture
def slow(hub: FakeHub) -> FakeHub:
    """Slow enough to be killed in the midst."""
    for name in WANTED[-2:]:
        hub.faults[name] = Fault(piece_s=0.002)
    return hub


def test_killed_at_any_point_it_goes_on(slow: FakeHub, root: Path) -> None:
    kill_and_resume(slow, root, kills=8, seed=3)
    # What was on disk was not fetched again: but for a block a file and kill.
    assert slow.sent < sum(map(len, slow.promised.values())) * 4


@pytest.mark.full
@pytest.mark.parametrize("seed", range(10))
def test_killed_again_and_again_it_goes_on(slow: FakeHub, root: Path, seed: int) -> None:
    kill_and_resume(slow, root, kills=20, seed=100 + seed)


def test_what_a_killed_worker_had_is_kept(hub: FakeHub, root: Path) -> None:
    hub.faults[FIRST] = Fault(times=1, stall=2_600_000)
    with Worker(encode(task(hub, root))) as worker:
        others = [repository(root) / "blobs" / hub.digest(name) for name in WANTED if name != FIRST]
        while not all(blob.exists() for blob in others):
            time.sleep(0.01)
        part = repository(root) / ".headrace" / f"{hub.digest(FIRST)}.part"
        while not part.exists() or part.stat().st_size < 2_600_000:
            time.sleep(0.01)
        worker.kill()
    with Worker(encode(task(hub, root))) as worker:
        events = events_of(worker)
    assert isinstance(events[-1], Ready)
    assert [h.get("Range") for h in hub.served(FIRST)] == [None, f"bytes={2 << 20}-"]
    progress = [event for event in events if isinstance(event, Progress)]
    assert progress[-1].fetched <= 3_300_000 - (2 << 20) + 100_000
    check_whole(hub, root, WANTED)


@pytest.mark.parametrize("how", ["line", "closed"])
def test_asked_to_stop_it_stops_and_keeps_what_it_has(hub: FakeHub, root: Path, how: str) -> None:
    hub.faults[FIRST] = Fault(stall=2_600_000)
    with Worker(encode(task(hub, root))) as worker:
        while hub.sent < 2_600_000 + 2_500_000:
            time.sleep(0.01)
        if how == "line":
            worker._in.write(b"stop\n")
            worker._in.flush()
        else:
            worker.stop()
        assert events_of(worker)[-1] == Stopped()
        assert worker.wait() == 0
    check_not_ready(hub, root)
    hub.faults.clear()
    with Worker(encode(task(hub, root))) as worker:
        assert isinstance(events_of(worker)[-1], Ready)


def test_a_look_up_tells_sizes_and_texts_and_writes_nothing(hub: FakeHub, root: Path) -> None:
    request = Request(repo=hub.repo, root=str(root))
    network = Network(endpoint=hub.endpoint)
    found = look_up(
        LookUp(request=request, network=network, pace=QUICK, read=("config.json", "no.json"))
    )
    assert isinstance(found, Planned)
    assert found.plan.total == sum(len(hub.promised[name]) for name in WANTED)
    assert found.texts == {"config.json": '{"model_type": "qwen3_moe"}'}
    assert (found.present, found.free > 0) == (0, True)
    assert list(root.iterdir()) == []


# --- disks ---


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB, which the model does not fit."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = shutil.which("mount")
    if os.name == "nt" or mount is None or os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    command = [mount, "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    if outcome.returncode != 0:
        pytest.skip(f"no small file system can be mounted here: {outcome.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_what_does_not_fit_is_not_begun(hub: FakeHub, small_disk: Path, fetch: Fetcher) -> None:
    events = fetch(root=str(small_disk))
    assert code(events) == "disk_full"
    assert "5.60 MiB" in events[-1].fault.message  # type: ignore[union-attr]
    assert not any("/resolve/" in path for _, path, _ in hub.requests)


def test_a_disk_that_fills_up_ends_it_and_room_lets_it_go_on(
    hub: FakeHub, small_disk: Path, fetch: Fetcher
) -> None:
    request = {"root": str(small_disk), "files": [FIRST]}
    hub.faults[FIRST] = Fault(times=1, stall=1_000_000)
    with Worker(encode(_task_of(hub, request))) as worker:
        while hub.sent < 1_000_000:
            time.sleep(0.01)
        other = small_disk / "other"
        with contextlib.suppress(OSError), other.open("wb", buffering=0) as file:
            while True:  # somebody else takes all the room
                file.write(bytes(1 << 16))
        hub.released.set()  # the connection ends; the next try brings more than there is room for
        events = events_of(worker)
    assert code(events) == "disk_full"
    check_not_ready(hub, small_disk)
    part = repository(small_disk) / ".headrace" / f"{hub.digest(FIRST)}.part"
    assert hub.files[FIRST].startswith(part.read_bytes())
    other.unlink()
    assert isinstance(fetch(**request)[-1], Ready)
    check_whole(hub, small_disk, [FIRST])


def test_too_little_room_ends_it_before_the_disk_is_full(
    hub: FakeHub, small_disk: Path, fetch: Fetcher
) -> None:
    hub.faults[FIRST] = Fault(piece_s=0.02)
    pace = replace(QUICK, keep_free=100_000)
    request = {"root": str(small_disk), "files": [FIRST]}
    with Worker(encode(replace(_task_of(hub, request), pace=pace))) as worker:
        while hub.sent < 200_000:
            time.sleep(0.01)
        free = shutil.disk_usage(small_disk).free
        (small_disk / "other").write_bytes(bytes(free - 400_000))
        events = events_of(worker)
    assert code(events) == "disk_full"
    assert shutil.disk_usage(small_disk).free > 0


def _task_of(hub: FakeHub, request: dict[str, object]) -> Fetch:
    converted = msgspec.convert({"repo": hub.repo, **request}, Request)
    return Fetch(request=converted, network=Network(endpoint=hub.endpoint), pace=QUICK)


def test_a_file_system_that_takes_no_file_so_large_is_named(
    hub: FakeHub, root: Path, fetch: Fetcher
) -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, hard))
    try:
        events = fetch()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert code(events) == "disk_full"
    check_not_ready(hub, root)
    part = repository(root) / ".headrace" / f"{hub.digest(FIRST)}.part"
    assert part.stat().st_size == 1 << 20
    assert isinstance(fetch()[-1], Ready)
    check_whole(hub, root, WANTED)


def test_a_folder_that_cannot_be_written_to_is_named(
    hub: FakeHub, small_disk: Path, fetch: Fetcher
) -> None:
    remount = ["mount", "-o", "remount,ro", str(small_disk)]
    subprocess.run(remount, check=True)
    events = fetch(root=str(small_disk))
    assert code(events) == "folder_unavailable"
    assert os.strerror(errno.EROFS) in events[-1].fault.message  # type: ignore[union-attr]
