"""The state machine of all downloads."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from app.core.downloads.job_file import JobFile
from app.core.downloads.records import (
    Discard,
    Discarded,
    Event,
    Failed,
    Fault,
    Fetch,
    FileProgress,
    Plan,
    Planned,
    Progress,
    Ready,
    RemoteFile,
    Request,
    State,
    Stopped,
    Task,
    Waiting,
)
from app.core.downloads.supervisor import STOP_S, Action, Downloads, Kill, Start, Stop

A, B = Request(repo="org/a"), Request(repo="org/b")
FILE = RemoteFile(name="x.safetensors", size=1000, digest="0" * 64)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def downloads(clock: Clock) -> Downloads:
    return Downloads(clock, JobFile())


def line(event: Event) -> bytes:
    return msgspec.json.encode(event) + b"\n"


def task(action: Action) -> Task:
    assert isinstance(action, Start)
    return msgspec.json.decode(action.line, type=Task)


def state(downloads: Downloads, request: Request) -> State | None:
    job = downloads.job(request.id)
    return job.state if job else None


def planned(request: Request) -> bytes:
    return line(Planned(plan=Plan(request=request, commit="1" * 40, files=(FILE,))))


def test_one_runs_and_the_next_follows(downloads: Downloads) -> None:
    (start,) = downloads.add(A)
    assert task(start) == Fetch(request=A)
    assert downloads.add(B) == []
    assert (state(downloads, A), state(downloads, B)) == (State.STARTING, State.QUEUED)
    downloads.received(A.id, planned(A))
    downloads.received(A.id, line(Ready(path="/m")))
    (start,) = downloads.exited(A.id)
    assert task(start) == Fetch(request=B)
    job = downloads.job(A.id)
    assert job is not None
    assert (job.state, job.path, job.share, job.done) == (State.READY, "/m", 1.0, 1000)


def test_progress_has_bytes_rate_and_time_left(downloads: Downloads, clock: Clock) -> None:
    downloads.add(A)
    downloads.received(A.id, planned(A))
    for done in (0, 100, 200, 300):
        files = (FileProgress(name=FILE.name, size=1000, done=done),)
        downloads.received(A.id, line(Progress(done=done, total=1000, files=files)))
        clock.now += 1
    job = downloads.job(A.id)
    assert job is not None
    assert (job.state, job.done, job.total, job.share) == (State.RUNNING, 300, 1000, 0.3)
    assert (job.rate, job.left_s) == (100.0, 7.0)
    assert job.files[FILE.name].done == 300
    for _ in range(40):  # nothing comes any more: the rate goes down by itself
        clock.now += 0.5
        downloads.tick()
    job = downloads.job(A.id)
    assert job is not None
    assert (job.rate, job.left_s) == (0.0, None)


def test_all_bytes_are_not_yet_ready(downloads: Downloads) -> None:
    downloads.add(A)
    downloads.received(A.id, line(Progress(done=1000, total=1000)))
    job = downloads.job(A.id)
    assert job is not None
    assert job.share < 1


def test_what_is_read_from_disk_is_no_rate_of_the_line(downloads: Downloads, clock: Clock) -> None:
    downloads.add(A)
    downloads.received(A.id, line(Progress(done=0, total=10_000, checking=True)))
    clock.now += 1
    downloads.received(A.id, line(Progress(done=9000, total=10_000, checking=True)))
    assert state(downloads, A) is State.CHECKING
    downloads.received(A.id, line(Progress(done=9000, total=10_000)))
    clock.now += 1
    downloads.received(A.id, line(Progress(done=9010, total=10_000)))
    job = downloads.job(A.id)
    assert job is not None
    assert job.rate == 10


def test_waiting_tells_why_and_until_when(downloads: Downloads, clock: Clock) -> None:
    downloads.add(A)
    downloads.received(A.id, line(Waiting(reason="no connection", seconds=8)))
    job = downloads.job(A.id)
    assert job is not None
    assert (job.state, job.reason, job.retry_at) == (State.WAITING, "no connection", 108.0)
    downloads.received(A.id, line(Progress(done=1, total=2)))
    job = downloads.job(A.id)
    assert job is not None
    assert (job.state, job.reason, job.retry_at) == (State.RUNNING, "", None)


def test_pause_and_resume(downloads: Downloads) -> None:
    downloads.add(A)
    downloads.add(B)
    assert downloads.pause(A.id) == [Stop(A.id)]
    assert state(downloads, A) is State.PAUSING
    downloads.received(A.id, line(Stopped()))
    (start,) = downloads.exited(A.id)
    assert (task(start), state(downloads, A)) == (Fetch(request=B), State.PAUSED)
    assert downloads.resume(A.id) == []
    assert state(downloads, A) is State.QUEUED
    (start,) = downloads.pause(B.id) and downloads.exited(B.id)
    assert task(start) == Fetch(request=A)


def test_a_pause_that_comes_too_late_is_ready(downloads: Downloads) -> None:
    downloads.add(A)
    downloads.pause(A.id)
    downloads.received(A.id, line(Ready(path="/m")))
    downloads.exited(A.id)
    assert state(downloads, A) is State.READY


def test_resumed_before_the_worker_has_ended_it_starts_once_it_has(downloads: Downloads) -> None:
    downloads.add(A)
    downloads.pause(A.id)
    assert downloads.resume(A.id) == []
    downloads.received(A.id, line(Stopped()))
    (start,) = downloads.exited(A.id)
    assert task(start) == Fetch(request=A)


def test_cancelling_ends_the_worker_and_then_discards(downloads: Downloads) -> None:
    downloads.add(A)
    downloads.add(B)
    assert downloads.cancel(A.id) == [Stop(A.id)]
    downloads.received(A.id, line(Ready(path="/m")))  # too late: it was not wanted
    (start,) = downloads.exited(A.id)
    assert task(start) == Discard(request=A)
    downloads.received(A.id, line(Discarded(freed=5)))
    assert state(downloads, A) is None
    (start,) = downloads.exited(A.id)
    assert task(start) == Fetch(request=B)


def test_what_cannot_be_discarded_stays_in_the_list(downloads: Downloads) -> None:
    downloads.add(A)
    downloads.pause(A.id)
    downloads.exited(A.id)
    (start,) = downloads.cancel(A.id)
    assert task(start) == Discard(request=A)
    fault = Fault(code="folder_unavailable", message="away")
    downloads.received(A.id, line(Failed(fault=fault)))
    downloads.exited(A.id)
    job = downloads.job(A.id)
    assert job is not None
    assert (job.state, job.fault) == (State.FAILED, fault)


def test_a_download_can_be_forgotten_where_it_cannot_be_discarded(downloads: Downloads) -> None:
    downloads.add(A)
    assert downloads.forget(A.id) == []  # it runs
    assert state(downloads, A) is State.STARTING
    fault = Fault(code="folder_unavailable", message="away")
    downloads.received(A.id, line(Failed(fault=fault)))
    downloads.exited(A.id)
    downloads.forget(A.id)
    assert downloads.jobs == ()
    assert JobFile().load() == []


def test_a_ready_one_that_was_deleted_can_be_fetched_anew(downloads: Downloads) -> None:
    downloads.add(A)
    downloads.received(A.id, planned(A))
    downloads.received(A.id, line(Ready(path="/m")))
    downloads.exited(A.id)
    (start,) = downloads.add(A)
    assert task(start) == Fetch(request=A)


def test_a_worker_that_does_not_stop_is_killed(downloads: Downloads, clock: Clock) -> None:
    downloads.add(A)
    downloads.pause(A.id)
    assert downloads.tick() == []
    clock.now += STOP_S
    assert downloads.tick() == [Kill(A.id)]
    downloads.exited(A.id)
    assert state(downloads, A) is State.PAUSED
    assert downloads.tick() == []


def test_a_worker_that_dies_is_a_fault_and_can_be_resumed(downloads: Downloads) -> None:
    downloads.add(A)
    downloads.received(A.id, planned(A))
    downloads.received(A.id, b"Traceback (most recent call last)\n")
    downloads.exited(A.id, "It was killed.")
    job = downloads.job(A.id)
    assert job is not None
    assert job.fault is not None
    assert (job.state, job.fault.code) == (State.FAILED, "worker_died")
    (start,) = downloads.resume(A.id)
    assert task(start) == Fetch(request=A, begun=True)


def test_the_list_survives_the_app(downloads: Downloads, clock: Clock) -> None:
    downloads.add(A)
    downloads.received(A.id, planned(A))
    downloads.add(B)
    downloads.pause(B.id)
    ready = Request(repo="org/c")
    downloads.add(ready)
    assert downloads.shut_down() == [Stop(A.id)]
    again = Downloads(clock, JobFile())
    assert [(job.request, job.state) for job in again.jobs] == [
        (A, State.QUEUED),
        (B, State.PAUSED),
        (ready, State.QUEUED),
    ]
    (start,) = again.begin()
    assert task(start) == Fetch(request=A, begun=True)


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"a": 1}'])
def test_a_damaged_list_is_set_aside(tmp_path: Path, content: str) -> None:
    path = tmp_path / "downloads.json"
    path.write_text(content)
    assert JobFile(path).load() == []
    assert path.with_name("downloads.json.corrupt").read_text() == content


def test_a_list_that_cannot_be_kept_ends_nothing(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "file").write_text("")
    downloads = Downloads(clock, JobFile(tmp_path / "file" / "downloads.json"))
    assert len(downloads.add(A)) == 1
