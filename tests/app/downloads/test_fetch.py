"""Fetching from a hub that behaves, and from one that does not."""

from __future__ import annotations

import email.utils
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from app.core.downloads.part import BLOCK
from app.core.downloads.records import (
    Discard,
    Discarded,
    Event,
    Failed,
    Network,
    Planned,
    Progress,
    Ready,
    Request,
    Waiting,
)
from app.core.downloads.token import save_token
from engine.formats import hub_layout
from tests.app.downloads.checks import (
    QUICK,
    check_not_ready,
    check_whole,
    code,
    do,
    left_over,
    repository,
)
from tests.app.downloads.fake_hub import FakeHub, Fault, sha256

Fetcher = Callable[..., list[Event]]
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
WANTED = ["README.md", "config.json", "empty.txt", FIRST, SECOND]


def total(hub: FakeHub) -> int:
    return sum(len(hub.promised[name]) for name in WANTED)


def require_ready(events: list[Event], hub: FakeHub, root: Path) -> None:
    assert isinstance(events[-1], Ready), events[-1]
    check_whole(hub, root, WANTED)


def test_a_model_is_fetched_in_the_hubs_layout(hub: FakeHub, root: Path, fetch: Fetcher) -> None:
    events = fetch()
    require_ready(events, hub, root)
    snapshot = repository(root) / "snapshots" / hub.commit
    assert events[-1] == Ready(path=str(snapshot))
    # The engine, and every other reader of the layout, finds it.
    assert hub_layout.snapshot_of(repository(root)) == snapshot
    assert (repository(root) / "refs" / "main").read_text() == hub.commit
    planned = next(event for event in events if isinstance(event, Planned))
    assert (planned.plan.total, planned.plan.commit) == (total(hub), hub.commit)
    progress = [event for event in events if isinstance(event, Progress)]
    assert progress[-1].done == progress[-1].total == progress[-1].fetched == total(hub)
    assert {f.name: f.done for p in progress for f in p.files} == {
        name: len(hub.promised[name]) for name in WANTED
    }


def test_what_is_there_is_used_and_not_fetched_again(
    hub: FakeHub, root: Path, fetch: Fetcher
) -> None:
    fetch()
    hub.requests.clear()
    require_ready(fetch(), hub, root)
    assert [path for _, path, _ in hub.requests if "/resolve/" in path] == []


def test_blobs_of_other_programs_count_once_they_are_checked(
    hub: FakeHub, root: Path, fetch: Fetcher
) -> None:
    blobs = repository(root) / "blobs"
    blobs.mkdir(parents=True)
    (blobs / sha256(hub.files[FIRST])).write_bytes(hub.files[FIRST])
    wrong = bytearray(hub.files[SECOND])
    wrong[1_000_000] ^= 1
    (blobs / sha256(hub.files[SECOND])).write_bytes(wrong)
    require_ready(fetch(), hub, root)
    assert (len(hub.served(FIRST)), len(hub.served(SECOND))) == (0, 1)


def test_a_snapshot_that_another_program_began_is_completed(
    hub: FakeHub, root: Path, fetch: Fetcher
) -> None:
    snapshot = repository(root) / "snapshots" / hub.commit
    snapshot.mkdir(parents=True)
    # As where there are no links: the file itself. And one that is damaged.
    (snapshot / FIRST).write_bytes(hub.files[FIRST])
    (snapshot / SECOND).write_bytes(bytes(len(hub.files[SECOND])))
    assert isinstance(fetch()[-1], Ready)
    for name in WANTED:
        assert (snapshot / name).read_bytes() == hub.promised[name]
    assert hub.served(FIRST) == []


def test_a_checked_file_that_was_changed_since_is_fetched_again(
    hub: FakeHub, root: Path, fetch: Fetcher
) -> None:
    fetch()
    blob = repository(root) / "blobs" / sha256(hub.files[FIRST])
    with blob.open("r+b") as file:
        file.write(b"????")
    os.utime(blob, ns=(1, 1))
    require_ready(fetch(), hub, root)
    assert len(hub.served(FIRST)) == 2


@pytest.mark.parametrize(
    "fault",
    [
        Fault(times=2, cut=1_500_000),
        Fault(times=2, cut=0),
        Fault(times=2, status=500),
        Fault(times=1, status=503, headers={"Retry-After": "0"}),
        Fault(times=2, status=429, headers={"Retry-After": "0"}),
        Fault(times=1, status=429, headers={"Retry-After": "soon"}),
        Fault(times=2, status=500, on_cdn=False),
        # An address that the hub signed and that is over.
        Fault(times=2, status=403),
        Fault(times=2, status=404),
        Fault(times=1, cut=700_000, length=False),
    ],
    ids=lambda fault: f"{fault.status}-{fault.cut}-{fault.on_cdn}-{fault.length}",
)
def test_what_passes_is_tried_again(hub: FakeHub, root: Path, fetch: Fetcher, fault: Fault) -> None:
    hub.faults[FIRST] = fault
    require_ready(fetch(), hub, root)


def test_what_came_before_a_connection_ended_is_not_fetched_again(
    hub: FakeHub, root: Path, fetch: Fetcher
) -> None:
    hub.faults[FIRST] = Fault(times=1, cut=1_500_000)
    require_ready(fetch(), hub, root)
    assert [h.get("Range") for h in hub.served(FIRST)] == [None, "bytes=1500000-"]


def test_a_stalled_connection_is_made_anew(hub: FakeHub, root: Path, fetch: Fetcher) -> None:
    hub.faults[FIRST] = Fault(times=1, stall=1_500_000)
    require_ready(fetch(pace=replace_pace(stall_s=0.3)), hub, root)
    assert len(hub.served(FIRST)) == 2


def test_a_slow_connection_is_not_a_stalled_one(hub: FakeHub, root: Path, fetch: Fetcher) -> None:
    hub.faults["README.md"] = Fault(piece_s=0.15)
    require_ready(fetch(pace=replace_pace(stall_s=0.3)), hub, root)
    assert len(hub.served("README.md")) == 1


def test_a_server_without_ranges_is_read_from_the_start(
    hub: FakeHub, root: Path, fetch: Fetcher
) -> None:
    hub.faults[FIRST] = Fault(times=2, cut=2_000_000, ranges=False)
    # The second answer brings nothing new before it is cut; the third comes with ranges.
    require_ready(fetch(), hub, root)


def test_the_wait_that_the_hub_asks_for_is_told(hub: FakeHub, fetch: Fetcher) -> None:
    hub.faults[""] = Fault(times=1, status=429, headers={"Retry-After": "1"})
    began = time.monotonic()
    waits = [event for event in fetch() if isinstance(event, Waiting)]
    assert time.monotonic() - began >= 1
    assert waits[0].seconds == 1
    assert "429" in waits[0].reason


def test_the_end_of_the_hubs_window_is_waited_for(hub: FakeHub, fetch: Fetcher) -> None:
    hub.faults[""] = Fault(times=1, status=429, headers={"RateLimit": '"api";r=0;t=1'})
    waits = [event for event in fetch() if isinstance(event, Waiting)]
    assert [wait.seconds for wait in waits] == [1]


def test_a_date_to_retry_after_is_read(hub: FakeHub, fetch: Fetcher) -> None:
    date = email.utils.formatdate(time.time() + 1, usegmt=True)
    hub.faults[""] = Fault(times=1, status=503, headers={"Retry-After": date})
    waits = [event for event in fetch() if isinstance(event, Waiting)]
    assert 0 <= waits[0].seconds <= 1


def test_a_wait_of_all_streams_is_told(hub: FakeHub, fetch: Fetcher) -> None:
    for name in WANTED:
        hub.faults[name] = Fault(times=1, status=503, headers={"Retry-After": "1"})
    events = fetch()
    assert isinstance(events[-1], Ready)
    assert any(isinstance(event, Waiting) and "503" in event.reason for event in events)


# --- never ready unless every byte is right ---


def corrupted(content: bytes) -> bytes:
    return content[:1_234_567] + bytes([content[1_234_567] ^ 1]) + content[1_234_568:]


@pytest.mark.parametrize(
    ("name", "body"),
    [
        (FIRST, lambda content: corrupted(content)),
        (FIRST, lambda content: content[:-1]),
        (FIRST, lambda content: content + b"x"),
        (FIRST, lambda content: b"<html>Sign in</html>"),
        (FIRST, lambda content: b""),
        ("config.json", lambda content: content.replace(b"3", b"4")),
        ("config.json", lambda content: content + b"\n"),
        ("empty.txt", lambda content: b"x"),
    ],
    ids=[
        *("a bit", "short", "long", "a page", "nothing", "small: a byte", "small: long"),
        "an empty one is not asked for",
    ],
)
def test_wrong_bytes_never_become_ready(
    hub: FakeHub, root: Path, fetch: Fetcher, name: str, body: object
) -> None:
    wrong = body(hub.files[name])  # type: ignore[operator]
    hub.faults[name] = Fault(body=wrong, length=name != FIRST)
    if name == "empty.txt":
        require_ready(fetch(), hub, root)
        return
    events = fetch()
    # A short body without a length looks like a lost connection, at first.
    assert code(events) in ("checksum", "network")
    assert name in events[-1].fault.message or code(events) == "network"  # type: ignore[union-attr]
    check_not_ready(hub, root)
    hub.faults.clear()
    require_ready(fetch(), hub, root)


def test_bytes_that_were_wrong_once_are_fetched_once_more(
    hub: FakeHub, root: Path, fetch: Fetcher
) -> None:
    hub.faults[FIRST] = Fault(times=1, body=corrupted(hub.files[FIRST]))
    require_ready(fetch(), hub, root)


def test_a_range_from_elsewhere_is_found_out(hub: FakeHub, root: Path, fetch: Fetcher) -> None:
    hub.faults[FIRST] = Fault(times=1, cut=2_000_000)
    original = hub.fault

    def then_shifted(name: str, *, cdn: bool) -> Fault:
        fault = original(name, cdn=cdn)
        shifted = name == FIRST and cdn and fault.cut is None and len(hub.served(FIRST)) == 2
        return Fault(shift=-100) if shifted else fault

    hub.fault = then_shifted  # type: ignore[method-assign]
    require_ready(fetch(), hub, root)
    assert [h.get("Range") for h in hub.served(FIRST)] == [None, "bytes=2000000-", None]


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Linked-Etag": '"' + "0" * 64 + '"'},
        {"X-Linked-Size": "77"},
        {"X-Repo-Commit": "2" * 40},
    ],
    ids=["etag", "size", "commit"],
)
def test_a_file_that_is_not_the_planned_one_is_refused(
    hub: FakeHub, root: Path, fetch: Fetcher, headers: dict[str, str]
) -> None:
    hub.faults[FIRST] = Fault(headers=headers, on_cdn=False)
    assert code(fetch()) == "changed"
    check_not_ready(hub, root)


def test_a_resumed_download_stays_at_its_commit(hub: FakeHub, root: Path, fetch: Fetcher) -> None:
    hub.faults[SECOND] = Fault(status=451, on_cdn=False)
    assert code(fetch()) == "hub"
    old = hub.commit
    hub.faults.clear()
    hub.commit = "2" * 40  # main moves on, and the old commit is gone
    assert code(fetch()) == "changed"
    check_not_ready(hub, root)
    hub.commit = old
    require_ready(fetch(), hub, root)


def test_a_new_commit_is_fetched_beside_the_old_one(
    hub: FakeHub, root: Path, fetch: Fetcher
) -> None:
    fetch()
    old = repository(root) / "snapshots" / hub.commit
    hub.commit = "2" * 40
    hub.files["config.json"] = hub.promised["config.json"] = b'{"model_type": "gpt_oss"}'
    hub.faults[FIRST] = Fault(status=500)
    events = fetch()
    assert isinstance(events[-1], Ready)
    assert len(hub.served(FIRST)) == 1  # the same file in both commits
    assert b"qwen3" in (old / "config.json").read_bytes()
    new = hub_layout.snapshot_of(repository(root))
    assert b"gpt_oss" in (new / "config.json").read_bytes()


# --- access ---


def test_a_gated_repository_says_what_to_do(hub: FakeHub, root: Path, fetch: Fetcher) -> None:
    hub.token = "hf_right"
    events = fetch()
    assert code(events) == "gated"
    assert "org/model" in events[-1].fault.hint  # type: ignore[union-attr]
    save_token("hf_wrong")
    assert code(fetch()) == "gated"
    save_token("hf_right")
    require_ready(fetch(), hub, root)


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        (401, {}, "unauthorised"),
        (401, {"X-Error-Code": "GatedRepo"}, "gated"),
        (403, {}, "gated"),
        (404, {"X-Error-Code": "RepoNotFound"}, "not_found"),
        (404, {"X-Error-Code": "RevisionNotFound"}, "not_found"),
        (418, {}, "hub"),
        (500, {}, "network"),
        (200, {}, "hub"),
    ],
)
def test_what_the_hub_refuses_is_named(
    hub: FakeHub,
    root: Path,
    fetch: Fetcher,
    status: int,
    headers: dict[str, str],
    expected: str,
) -> None:
    hub.faults[""] = Fault(status=status, headers=headers, body=b"<html>")
    assert code(fetch()) == expected
    assert left_over(root) == []


def test_the_token_goes_to_the_hub_and_nowhere_else(
    hub: FakeHub, root: Path, fetch: Fetcher, capfd: pytest.CaptureFixture[str]
) -> None:
    hub.token = "hf_secret_of_mine"
    save_token(hub.token)
    events = fetch()
    require_ready(events, hub, root)
    sent = {(host, "Authorization" in headers) for host, _, headers in hub.requests}
    assert sent == {("127.0.0.1", True), ("localhost", False)}
    written = [path for path in root.rglob("*") if path.is_file()]
    assert not any(b"hf_secret" in path.read_bytes() for path in written)
    assert "hf_secret" not in str(events) + "".join(capfd.readouterr())


def test_no_message_has_a_signed_address(hub: FakeHub, fetch: Fetcher) -> None:
    for fault in (Fault(status=500), Fault(cut=0), Fault(status=403)):
        hub.faults[FIRST] = fault
        events = fetch()
        assert code(events) == "network"
        assert "Signature" not in str(events)
        assert "cdn/" not in str(events)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_only_the_user_can_read_the_token(tmp_path: Path) -> None:
    save_token("hf_x")
    assert (tmp_path / "home" / "hub-token").stat().st_mode & 0o777 == 0o600


# --- requests that cannot be ---


@pytest.mark.parametrize("repo", ["../up", "a/b/c", "org/mo--del", "", "org/.hidden", "C:/x"])
def test_a_name_that_leads_elsewhere_is_refused(root: Path, fetch: Fetcher, repo: str) -> None:
    assert code(fetch(repo=repo)) == "not_found"
    assert left_over(root) == []


@pytest.mark.parametrize("name", ["../../up.json", "/etc/x.json", "a\\..\\b.json", "a/../b.json"])
def test_a_files_name_that_leads_elsewhere_is_refused(
    hub: FakeHub, root: Path, fetch: Fetcher, name: str
) -> None:
    hub.promised[name] = hub.files[name] = b"{}"
    assert code(fetch()) == "hub"
    assert left_over(root) == []


def test_a_mirror_without_checksums_is_refused(hub: FakeHub, root: Path, fetch: Fetcher) -> None:
    body = b'{"sha": "%s", "siblings": [{"rfilename": "model.safetensors", "size": 4}]}'
    hub.faults[""] = Fault(body=body % hub.commit.encode())
    assert code(fetch()) == "hub"
    assert left_over(root) == []


@pytest.mark.parametrize(
    "network",
    [
        Network(endpoint="ftp://example"),
        Network(endpoint="http://user:password@127.0.0.1"),
        Network(endpoint="https://127.0.0.1:9", ca_file="nowhere.pem"),
        Network(endpoint="https://127.0.0.1:9", proxy="nonsense"),
        Network(endpoint="http://127.0.0.1:9"),
    ],
    ids=["scheme", "password", "certificates", "proxy", "nobody there"],
)
def test_a_network_that_cannot_be_is_named(root: Path, network: Network) -> None:
    from app.core.downloads.records import Fetch

    request = Request(repo="org/model", root=str(root))
    events = do(Fetch(request=request, network=network, pace=QUICK))
    assert code(events) == "network"
    assert "password" not in str(events)


def test_a_missing_folder_is_never_made(tmp_path: Path, fetch: Fetcher) -> None:
    away = tmp_path / "drive" / "models"
    assert code(fetch(root=str(away))) == "folder_unavailable"
    assert not away.parent.exists()


def test_an_empty_mount_point_is_not_begun_anew(root: Path, fetch: Fetcher) -> None:
    assert code(fetch(begun=True)) == "folder_unavailable"
    assert left_over(root) == []


# --- parts ---


def interrupted(hub: FakeHub, fetch: Fetcher, name: str = FIRST, at: int = 2_500_000) -> None:
    """A download that ended with a part of a file."""
    hub.faults[name] = Fault(cut=at, ranges=False)
    assert code(fetch()) == "network"
    hub.faults.clear()
    hub.requests.clear()


@pytest.mark.parametrize("seed", range(6))
def test_a_part_that_a_power_cut_damaged_is_fetched_from_there(
    hub: FakeHub, root: Path, fetch: Fetcher, seed: int
) -> None:
    interrupted(hub, fetch)
    part = repository(root) / ".headrace" / f"{sha256(hub.files[FIRST])}.part"
    sums = part.with_suffix(".sums")
    chance = random.Random(seed)
    damage = [
        lambda: part.write_bytes(part.read_bytes()[:BLOCK] + bytes(BLOCK)),
        lambda: part.write_bytes(bytes(part.stat().st_size)),
        lambda: os.truncate(part, chance.randrange(part.stat().st_size)),
        lambda: os.truncate(sums, 5),
        sums.unlink,
        lambda: part.write_bytes(part.read_bytes() + chance.randbytes(3 * BLOCK)),
    ][seed]
    damage()
    require_ready(fetch(), hub, root)
    kept = [BLOCK, 0, None, BLOCK, 0, 2 * BLOCK][seed]
    if kept is not None:
        asked = hub.served(FIRST)[0].get("Range")
        assert asked == (f"bytes={kept}-" if kept else None)


def test_a_file_of_several_names_is_fetched_once(hub: FakeHub, root: Path, fetch: Fetcher) -> None:
    for name in ("a.json", "b.json"):
        hub.files[name] = hub.promised[name] = b"{}" * 1000
    assert isinstance(fetch(files=["?.json"])[-1], Ready)
    check_whole(hub, root, ["a.json", "b.json"])


def test_discarding_leaves_nothing(hub: FakeHub, root: Path, fetch: Fetcher) -> None:
    interrupted(hub, fetch)
    there = sum(
        path.stat().st_size
        for path in root.rglob("*")
        if path.suffix in (".part", "") and path.is_file()
    )
    (event,) = do(Discard(request=Request(repo=hub.repo, root=str(root))))
    assert isinstance(event, Discarded)
    assert event.freed == there > 2_000_000
    assert left_over(root) == []
    assert not repository(root).exists()


def test_discarding_keeps_what_another_download_needs(
    hub: FakeHub, root: Path, fetch: Fetcher
) -> None:
    assert isinstance(fetch(files=[SECOND])[-1], Ready)
    interrupted(hub, fetch)
    do(Discard(request=Request(repo=hub.repo, root=str(root))))
    check_whole(hub, root, [SECOND])


def replace_pace(**fields: object) -> object:
    from msgspec.structs import replace

    return replace(QUICK, **fields)


def test_one_process_at_a_time(hub: FakeHub, root: Path, fetch: Fetcher) -> None:
    from app.core.downloads.layout import Repository
    from app.core.downloads.store import claimed

    with claimed(Repository(root, hub.repo)):
        events = fetch()
    assert isinstance(events[-1], Failed)
    assert code(events) == "busy"
