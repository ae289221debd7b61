"""Looking through a folder for models: a hub cache, and folders of the person's own.

What is whole is decided by what the loader itself would say (`engine.formats.model_files`), and by
Headrace's manifests. Nothing is written.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from app.core.downloads import layout, store
from app.core.downloads.models import Folder, Model, Standing
from app.core.downloads.records import Plan
from app.core.downloads.selection import to_load
from engine.errors import HeadraceError
from engine.formats import gguf_parts, hub_layout
from engine.formats.model_files import CONFIG, inspect_model

_DEPTH = 3
"""Folders below the root that are looked into: `root/publisher/model/file.gguf` is usual."""


def scan(root: Path) -> Folder:
    """What lies in the folder now. Raises OSError where it cannot be read."""
    models: list[Model] = []
    _look(root, root, _DEPTH, models)
    models.sort(key=lambda model: (model.name.lower(), model.path))
    sizes = {key: size for model in models for key, size in _sizes(model.files).items()}
    state = root.stat()
    return Folder(
        path=str(root),
        identity=f"{state.st_dev}:{state.st_ino}",
        models=tuple(models),
        size=sum(sizes.values()),
        free=shutil.disk_usage(root).free,
    )


def _look(root: Path, folder: Path, depth: int, found: list[Model]) -> None:
    entries = sorted(folder.iterdir())
    if os.path.lexists(folder / CONFIG) and any(_is_weights(entry) for entry in entries):
        found.append(_folder_model(root, folder, entries))
        return
    for entry in gguf_parts.entries(folder):
        found.append(_gguf_model(root, entry))
    for path in entries:
        # A link may lead anywhere, and round in circles: what it leads to is not this folder's.
        if path.is_symlink() or path.name.startswith(".") or not path.is_dir():
            continue
        if hub_layout.repository_name(path.name) is not None:
            with contextlib.suppress(PermissionError):
                found.extend(_Cached(root, path).models())
        elif depth > 1:
            with contextlib.suppress(PermissionError):
                _look(root, path, depth - 1, found)


def _is_weights(path: Path) -> bool:
    name = path.name.removesuffix(".index.json")
    for suffix in hub_layout.UNFINISHED_SUFFIXES:
        name = name.removesuffix(suffix)
    return name.endswith(".safetensors")


def _folder_model(root: Path, folder: Path, entries: list[Path]) -> Model:
    files = tuple(str(path) for path in entries if not path.is_dir() or path.is_symlink())
    name = folder.relative_to(root).as_posix() if folder != root else folder.name
    return _judged(root, name, folder, files)


def _gguf_model(root: Path, entry: gguf_parts.GgufEntry) -> Model:
    there = [part for part in entry.parts if os.path.lexists(part)]
    return _judged(root, entry.name, there[0], tuple(map(str, there)))


def _judged(root: Path, name: str, path: Path, files: tuple[str, ...], commit: str = "") -> Model:
    standing, note = Standing.FOREIGN, ""
    try:
        note = " ".join(f"{sentence[:1].upper()}{sentence[1:]}." for sentence in _notes(path))
    except HeadraceError as error:
        standing, note = Standing.PARTIAL, error.message
    except OSError as error:
        standing, note = Standing.PARTIAL, str(error)
    return Model(
        root=str(root),
        name=name,
        path=str(path),
        standing=standing,
        size=sum(_sizes(files).values()),
        commit=commit,
        files=files,
        note=note,
    )


def _notes(path: Path) -> tuple[str, ...]:
    return inspect_model(path).notes


class _Cached:
    """A repository's folder in a hub cache."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root, self._folder = root, folder
        self._name = hub_layout.repository_name(folder.name) or folder.name
        self._own = layout.Repository(folder.parent, self._name)
        self._manifests = [
            manifest
            for path in sorted((folder / layout.OWN).glob("*.ready"))
            if (manifest := store.read_manifest(path)) is not None
        ]

    def models(self) -> Iterator[Model]:
        found = [*self._found()]
        yield from found
        if not found and (begun := sorted((self._folder / "blobs").glob("*.incomplete"))):
            files = tuple(map(str, begun))
            yield Model(
                root=str(self._root),
                name=self._name,
                path=str(self._folder),
                standing=Standing.PARTIAL,
                size=sum(_sizes(files).values()),
                files=files,
                note="Another program has begun to fetch it.",
            )

    def _found(self) -> Iterator[Model]:
        for plan in self._plans():
            yield self._unfinished(plan)
        snapshots = self._folder / "snapshots"
        if snapshots.is_dir():
            for snapshot in sorted(snapshots.iterdir()):
                if snapshot.is_dir() and not snapshot.is_symlink():
                    yield from self._snapshot(snapshot)

    def _plans(self) -> Iterator[Plan]:
        for path in sorted((self._folder / layout.OWN).glob("*.plan")):
            if (plan := store.read_at(path, Plan)) is not None:
                yield plan

    def _unfinished(self, plan: Plan) -> Model:
        own = self._own
        places = [path for file in plan.files for path in (own.blob(file), own.part(file))]
        files = tuple(dict.fromkeys(str(path) for path in places if path.is_file()))
        size = store.Store(own, plan).present()
        return Model(
            root=str(self._root),
            name=self._titled(to_load(plan.files)),
            path=str(own.snapshot(plan.commit) / to_load(plan.files)),
            standing=Standing.PARTIAL,
            size=size,
            total=plan.total,
            commit=plan.commit,
            files=files,
            note="The download is not complete.",
            request=plan.request,
        )

    def _snapshot(self, snapshot: Path) -> Iterator[Model]:
        every = [path for path in sorted(snapshot.rglob("*")) if _is_file(path)]
        left = set(every)
        for manifest in self._manifests:
            if manifest.plan.commit == snapshot.name:
                mine = [snapshot / file.name for file in manifest.plan.files]
                left -= set(mine)
                yield self._ready(snapshot, manifest, [path for path in mine if _is_file(path)])
        weights = [path for path in left if path.suffix == ".gguf" or _is_weights(path)]
        if not weights:
            return
        if any(_is_weights(path) for path in weights):
            files = tuple(map(str, sorted(left)))
            yield _judged(self._root, self._name, snapshot, files, snapshot.name)
            return
        for folder in sorted({path.parent for path in weights}):
            for entry in gguf_parts.entries(folder):
                there = [part for part in entry.parts if part in left]
                if there:
                    files = tuple(map(str, there))
                    name = self._titled(entry.name)
                    yield _judged(self._root, name, there[0], files, snapshot.name)

    def _ready(self, snapshot: Path, manifest: store.Manifest, there: list[Path]) -> Model:
        plan = manifest.plan
        standing, note = _standing(snapshot, manifest)
        files = tuple(map(str, there))
        name = to_load(plan.files)
        return Model(
            root=str(self._root),
            name=self._titled(name),
            path=str(snapshot / name),
            standing=standing,
            size=sum(_sizes(files).values()),
            total=plan.total if standing is Standing.PARTIAL else 0,
            commit=plan.commit,
            files=files,
            note=note,
            request=plan.request,
        )

    def _titled(self, file: str) -> str:
        """The repository's name, with the file's where it holds several models."""
        return f"{self._name}/{file.removesuffix('.gguf')}" if file else self._name


def _is_file(path: Path) -> bool:
    return path.is_symlink() or path.is_file()


def _standing(snapshot: Path, manifest: store.Manifest) -> tuple[Standing, str]:
    """Whether all is as it was when it was checked, and a sentence on what is not."""
    gone, changed = [], []
    for file in manifest.plan.files:
        try:
            state = (snapshot / file.name).stat()
        except OSError:
            gone.append(file.name)
            continue
        if state.st_size != file.size:
            gone.append(file.name)
        elif state.st_mtime_ns != manifest.seen[file.digest].mtime_ns:
            changed.append(file.name)
    if gone:
        return Standing.PARTIAL, f"{', '.join(gone)} is gone or was cut. Fetch it again."
    if changed:
        return Standing.FOREIGN, (
            f"{', '.join(changed)} was written to since it was checked. "
            "Fetch it again to have it checked; what is right is not fetched."
        )
    return Standing.READY, ""


def _sizes(files: Iterable[str]) -> dict[tuple[int, int], int]:
    """Bytes by device and inode: what several names lead to counts once."""
    found = {}
    for name in files:
        with contextlib.suppress(OSError):
            state = Path(name).stat()
            found[state.st_dev, state.st_ino] = state.st_size
    return found
