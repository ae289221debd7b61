"""Deleting a model: what goes, what others need, and doing it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from app.core.downloads import layout, store
from app.core.downloads.durable import disk_faults
from app.core.downloads.models import Deletion, Model
from app.core.downloads.records import Plan
from engine.formats import hub_layout


def deletion(model: Model) -> Deletion:
    """What `delete` would do. Raises DownloadError where the folder is unavailable."""
    root = Path(model.root)
    if not root.is_dir():
        raise store.unavailable(root)
    with disk_faults(root):
        return _deletion(model, root.resolve())


def delete(model: Model) -> Deletion:
    """Delete the model's files: never outside its root, and no link is followed out of it.

    Raises DownloadError naming what could not be deleted.
    """
    root = Path(model.root)
    repository = _repository(model)
    with contextlib.ExitStack() as stack:
        if repository is not None:
            stack.enter_context(store.claimed(repository))
        what = deletion(model)
        with disk_faults(root):
            for name in what.removed:
                Path(name).unlink(missing_ok=True)
            _remove_empty((Path(name).parent for name in what.removed), root)
            if repository is not None:
                _tidy(repository)
    return what


def _repository(model: Model) -> layout.Repository | None:
    """The repository of a hub cache that the model lies in."""
    for folder in (Path(model.path), *Path(model.path).parents):
        name = hub_layout.repository_name(folder.name)
        if name is not None and Path(model.root) in folder.parents:
            return layout.Repository(folder.parent, name)
    return None


def _deletion(model: Model, root: Path) -> Deletion:
    """`root`: with its own links resolved."""
    repository = _repository(model)
    files = [Path(name) for name in model.files if os.path.lexists(name)]
    outside = {path for path in files if not path.parent.resolve().is_relative_to(root)}
    removed = [path for path in files if path not in outside]
    kept: set[Path] = set()
    if repository is not None:
        names = {path for path in removed if path.parent != repository.blobs}
        blobs = set(_blobs(names, repository)) | (set(removed) - names)
        used = _used(repository, names, model)
        kept = {blob for blob in blobs if blob in used}
        records = _records(repository, model)
        removed = [*sorted(names), *sorted(blobs - kept), *records]
    return Deletion(
        freed=_freed(removed),
        kept=sum(_size(path) for path in kept | outside),
        removed=tuple(map(str, removed)),
    )


def _blobs(names: Iterable[Path], repository: layout.Repository) -> Iterator[Path]:
    """The repository's blobs that these names of a snapshot lead to, by one link and no more."""
    inodes = {}
    if repository.blobs.is_dir():
        for blob in repository.blobs.iterdir():
            state = blob.lstat()
            inodes[state.st_dev, state.st_ino] = blob
    for name in names:
        if name.is_symlink():
            target = Path(os.path.normpath(name.parent / name.readlink()))
            if target.parent == repository.blobs and os.path.lexists(target):
                yield target
        elif (key := (name.lstat().st_dev, name.lstat().st_ino)) in inodes:
            yield inodes[key]  # where there are no symbolic links


def _used(repository: layout.Repository, going: set[Path], model: Model) -> set[Path]:
    """Blobs that other snapshots, models of this one, or unfinished downloads need."""
    every = repository.snapshots.rglob("*")
    names = [path for path in every if path not in going and not _is_folder(path)]
    used = set(_blobs(names, repository))
    for path in repository.own.glob("*.plan"):
        plan = store.read_at(path, Plan)
        if plan is not None and plan.request != model.request:
            used |= {repository.blob(file) for file in plan.files}
    return used


def _records(repository: layout.Repository, model: Model) -> list[Path]:
    """Headrace's own files on this model."""
    if model.request is None:
        return []
    plan = store.read_at(repository.plan(model.request), Plan)
    found = [repository.ready(Plan(request=model.request, commit=model.commit))]
    if plan is not None and plan.commit == model.commit:
        found.append(repository.plan(model.request))
        found += [path for path in repository.links(model.request).rglob("*") if _is_file(path)]
        for file in plan.files:
            found += [repository.part(file), repository.sums(file), repository.seen(file)]
    return [path for path in dict.fromkeys(found) if os.path.lexists(path)]


def _tidy(repository: layout.Repository) -> None:
    """Branches whose commit is gone go, and with the last model the rest of the folder."""
    for ref in sorted((repository.folder / "refs").rglob("*")):
        if ref.is_file() and not repository.snapshot(ref.read_text("utf-8", "replace")).is_dir():
            ref.unlink()
            _remove_empty([ref.parent], repository.root)
    _remove_empty([repository.own, repository.blobs, repository.snapshots], repository.root)
    if not repository.snapshots.exists() and not repository.blobs.exists():
        # The hub's client notes here which files a repository does not have.
        shutil.rmtree(repository.folder / ".no_exist", ignore_errors=True)
    _remove_empty([repository.folder], repository.root)


def _remove_empty(folders: Iterable[Path], root: Path) -> None:
    """These folders and those above them below the root, as far as they are empty."""
    for folder in set(folders):
        for path in (folder, *folder.parents):
            if root not in path.parents:
                break
            try:
                path.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                break


def _freed(paths: list[Path]) -> int:
    """Bytes that nothing names any more once these names are gone; links have none."""
    states = {path: path.lstat() for path in paths if not path.is_symlink()}
    names = Counter((state.st_dev, state.st_ino) for state in states.values())
    sizes = {(s.st_dev, s.st_ino): (s.st_size, s.st_nlink) for s in states.values()}
    return sum(size for key, (size, links) in sizes.items() if names[key] >= links)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _is_file(path: Path) -> bool:
    return path.is_symlink() or path.is_file()


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
