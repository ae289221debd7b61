"""What every download has to come to, however it went."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec

from app.core.downloads.records import Event, Failed, Pace, Task
from app.core.downloads.worker import Worker
from tests.app.downloads.fake_hub import FakeHub

QUICK = Pace(stall_s=5.0, retry_s=0.01, tries=4, keep_free=0)


def do(task: Task) -> list[Event]:
    out = io.BytesIO()
    Worker(out).do(task)
    return [msgspec.json.decode(line, type=Event) for line in out.getvalue().splitlines()]


def code(events: list[Event]) -> str:
    """The fault that ended it."""
    last = events[-1]
    assert isinstance(last, Failed), last
    assert last.fault.message
    return last.fault.code


def repository(root: Path) -> Path:
    return root / "models--org--model"


def left_over(root: Path) -> list[str]:
    """Everything below the root but folders and the lock."""
    return sorted(
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if (path.is_symlink() or not path.is_dir()) and path.name != "headrace.lock"
    )


def check_whole(hub: FakeHub, root: Path, names: list[str]) -> None:
    """The snapshot has exactly these files, byte for byte, and nothing else lies around."""
    snapshot = repository(root) / "snapshots" / hub.commit
    there = {path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*")}
    assert there == set(names)
    for name in names:
        assert (snapshot / name).read_bytes() == hub.promised[name], name
    digests = {hub.digest(name) for name in names}
    blobs = {path.name for path in (repository(root) / "blobs").iterdir()}
    assert blobs == digests
    own = [path.suffix for path in (repository(root) / ".headrace").iterdir()]
    assert own == [".ready"]


def check_not_ready(hub: FakeHub, root: Path) -> None:
    """No program takes what is there for a model, and every blob is right."""
    assert not list(root.rglob("*.ready"))
    assert not (repository(root) / "snapshots").exists()
    assert not (repository(root) / "refs").exists()
    known = {hub.digest(name): content for name, content in hub.promised.items()}
    for blob in (repository(root) / "blobs").glob("*"):
        assert blob.read_bytes() == known[blob.name]
