"""What lies on disk, and deleting it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from app.core.downloads.errors import DownloadError
from app.core.downloads.library import Library, deletion
from app.core.downloads.models import Model, Standing
from app.core.downloads.records import Event, Ready
from engine import paths
from tests.app.downloads.checks import code, left_over, repository
from tests.app.downloads.fake_hub import FakeHub, Fault

FIRST = "model-00001-of-00002.safetensors"
Fetcher = Callable[..., list[Event]]


def one(root: Path) -> Model:
    (folder,) = Library().scan([root])
    (model,) = folder.models
    assert folder.size == model.size
    return model


def disk_use(root: Path) -> int:
    """Bytes of all regular files, each inode once."""
    states = {p.lstat().st_ino: p.lstat().st_size for p in root.rglob("*") if not p.is_symlink()}
    folders = {p.lstat().st_ino for p in root.rglob("*") if p.is_dir()}
    return sum(size for inode, size in states.items() if inode not in folders)


def test_a_fetched_model_is_ready_until_somebody_changes_it(
    hub: FakeHub, root: Path, fetch: Fetcher
) -> None:
    path = fetch()[-1].path  # type: ignore[union-attr]
    model = one(root)
    assert (model.name, model.standing, model.path) == ("org/model", Standing.READY, path)
    assert model.size == sum(len(hub.promised[file.name]) for file in Path(path).iterdir())
    assert model.commit == hub.commit
    blob = (Path(path) / FIRST).resolve()
    os.utime(blob, ns=(1, 1))
    assert one(root).standing is Standing.FOREIGN
    os.truncate(blob, 100)
    model = one(root)
    assert (model.standing, FIRST in model.note) == (Standing.PARTIAL, True)
    assert isinstance(fetch()[-1], Ready)
    assert one(root).standing is Standing.READY


def test_an_unfinished_download_is_partial_and_can_go_on(
    hub: FakeHub, root: Path, fetch: Fetcher
) -> None:
    hub.faults[FIRST] = Fault(cut=1_500_000, ranges=False)
    assert code(fetch()) == "network"
    model = one(root)
    assert model.standing is Standing.PARTIAL
    assert model.request is not None and model.request.repo == "org/model"
    assert (
        0
        < model.size
        < model.total
        == sum(len(content) for name, content in hub.promised.items() if "original" not in name)
    )


def test_models_of_other_programs_are_judged_by_the_loaders_own_check(root: Path) -> None:
    demo = paths.demo_model()
    shutil.copytree(demo, root / "publisher" / "demo")
    broken = root / "broken"
    shutil.copytree(demo, broken)
    weights = next(broken.glob("*.safetensors"))
    os.truncate(weights, weights.stat().st_size // 2)
    half = root / "half"
    shutil.copytree(demo, half)
    next(half.glob("*.safetensors")).rename(half / "model.safetensors.part")
    (root / "notes").mkdir()
    (root / "notes" / "a.txt").write_text("no model")
    (folder,) = Library().scan([root])
    assert {model.name: model.standing for model in folder.models} == {
        "broken": Standing.PARTIAL,
        "half": Standing.PARTIAL,
        "publisher/demo": Standing.FOREIGN,
    }


def test_files_of_another_program_in_the_hubs_layout_are_found(root: Path) -> None:
    snapshot = root / "models--org--demo" / "snapshots" / ("a" * 40)
    blobs = root / "models--org--demo" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, path in enumerate(sorted(paths.demo_model().iterdir())):
        shutil.copy(path, blobs / f"{number:040x}")
        (snapshot / path.name).symlink_to(f"../../blobs/{number:040x}")
    model = one(root)
    assert (model.name, model.standing) == ("org/demo", Standing.FOREIGN)
    assert model.size == disk_use(root)
    assert Library().delete(model).freed == model.size
    assert left_over(root) == []


def test_what_another_program_has_begun_is_partial_and_can_go(root: Path) -> None:
    blobs = root / "models--org--model" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{'a' * 64}.1234.incomplete").write_bytes(bytes(1000))
    model = one(root)
    assert (model.name, model.standing, model.size) == ("org/model", Standing.PARTIAL, 1000)
    assert Library().delete(model).freed == 1000
    assert left_over(root) == []


@pytest.mark.parametrize("how", ["gone", "empty", "a file"])
def test_an_unavailable_folder_forgets_nothing(
    hub: FakeHub, root: Path, fetch: Fetcher, how: str
) -> None:
    fetch()
    before = Library().scan([root])
    away = root.with_name("unmounted")
    root.rename(away)
    if how == "empty":
        root.mkdir()
    elif how == "a file":
        root.write_text("")
    for _ in range(2):
        (folder,) = Library().scan([root])
        assert (folder.available, bool(folder.reason)) == (False, True)
        (model,) = folder.models
        assert (model.name, model.standing) == ("org/model", Standing.UNAVAILABLE)
    if how != "empty":
        with pytest.raises(DownloadError) as caught:
            Library().delete(model)
        assert caught.value.code == "folder_unavailable"
    if how == "empty":
        shutil.rmtree(root)
    elif how == "a file":
        root.unlink()
    away.rename(root)
    after = Library().scan([root])
    assert [f.models for f in after] == [f.models for f in before]


def test_a_deleted_model_is_not_missed(hub: FakeHub, root: Path, fetch: Fetcher) -> None:
    fetch()
    library = Library()
    model = one(root)
    used = disk_use(root)
    promised = deletion(model)
    done = library.delete(model)
    assert promised == done
    assert done.freed == used - len(hub.commit)  # less refs/main
    assert disk_use(root) == 0
    assert left_over(root) == []
    (folder,) = library.scan([root])
    assert (folder.available, folder.models) == (True, ())


def test_an_emptied_folder_is_not_an_unavailable_one(root: Path) -> None:
    shutil.copytree(paths.demo_model(), root / "demo")
    assert one(root).name == "demo"
    shutil.rmtree(root / "demo")  # by somebody else
    (folder,) = Library().scan([root])
    assert (folder.available, folder.models) == (True, ())


def test_what_two_models_share_is_counted_once_and_stays(
    hub: FakeHub, root: Path, fetch: Fetcher
) -> None:
    fetch()
    old = hub.commit
    hub.commit = "2" * 40
    hub.files["config.json"] = hub.promised["config.json"] = b'{"other": 1}'
    fetch()
    (folder,) = Library().scan([root])
    assert {(m.commit, m.standing) for m in folder.models} == {
        (old, Standing.READY),
        (hub.commit, Standing.READY),
    }
    assert folder.size < sum(model.size for model in folder.models)
    first = next(model for model in folder.models if model.commit == old)
    before = disk_use(root)
    done = Library().delete(first)
    assert done.kept > 5_000_000 > done.freed
    assert before - disk_use(root) == done.freed
    assert one(root).standing is Standing.READY
    assert isinstance(fetch()[-1], Ready)


def test_what_an_unfinished_download_needs_stays(hub: FakeHub, root: Path, fetch: Fetcher) -> None:
    fetch(files=[FIRST])
    hub.faults["config.json"] = Fault(status=500)
    assert code(fetch()) == "network"
    (folder,) = Library().scan([root])
    ready = next(model for model in folder.models if model.standing is not Standing.PARTIAL)
    assert Library().delete(ready).freed < 10_000
    hub.faults.clear()
    hub.requests.clear()
    assert isinstance(fetch()[-1], Ready)
    assert hub.served(FIRST) == []


def test_deleting_an_unfinished_download_leaves_nothing(
    hub: FakeHub, root: Path, fetch: Fetcher
) -> None:
    hub.faults[FIRST] = Fault(cut=2_500_000, ranges=False)
    fetch()
    done = Library().delete(one(root))
    assert done.freed > 2_000_000
    assert left_over(root) == []


def test_no_link_is_followed_out_of_the_folder(
    hub: FakeHub, root: Path, tmp_path: Path, fetch: Fetcher
) -> None:
    """The hub's client may keep bytes in a store of its own, with links to it."""
    fetch()
    shared = tmp_path / "store"
    shared.mkdir()
    blob = repository(root) / "blobs" / hub.digest(FIRST)
    blob.rename(shared / "bytes")
    blob.symlink_to(shared / "bytes")
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(paths.demo_model(), elsewhere)
    (root / "link").symlink_to(elsewhere)
    (folder,) = Library().scan([root])
    assert [model.name for model in folder.models] == ["org/model"]
    Library().delete(folder.models[0])
    assert (shared / "bytes").read_bytes() == hub.files[FIRST]
    assert sorted(p.name for p in elsewhere.iterdir()) == sorted(
        p.name for p in paths.demo_model().iterdir()
    )
    assert left_over(root) == ["link"]


def test_a_model_whose_folder_became_a_link_out_is_left_alone(root: Path, tmp_path: Path) -> None:
    shutil.copytree(paths.demo_model(), root / "demo")
    model = one(root)
    (root / "demo").rename(tmp_path / "demo")
    (root / "demo").symlink_to(tmp_path / "demo")
    assert deletion(model).removed == ()
    assert Library().delete(model).freed == 0
    assert list((tmp_path / "demo").glob("*.safetensors"))


def test_a_damaged_memory_is_no_hindrance(root: Path, tmp_path: Path) -> None:
    memory = tmp_path / "library.json"
    memory.write_text("[{")
    assert Library(memory).remembered([root])[0].models == ()
    assert Library(memory).scan([root])[0].available
