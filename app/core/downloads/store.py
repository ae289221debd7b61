"""A download on disk: what of it is there, making it ready, and taking it away again.

The caller holds the repository's lock.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from app.core.downloads import layout
from app.core.downloads.durable import disk_faults, sync_folder, write_whole
from app.core.downloads.errors import DownloadError
from app.core.downloads.part import BLOCK, Part, digest_of
from app.core.downloads.records import Plan, RemoteFile, Request
from app.core.downloads.selection import to_load
from engine.private_files import locked

T = TypeVar("T")


class Seen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A complete file as it was when its bytes were checked. Its bytes count as checked for as
    long as size and time stay: to read hundreds of gigabytes at every resume would be no help."""

    size: int
    mtime_ns: int
    fetched: bool = False
    """By Headrace; else it was there before."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Written last: everything in it was checked and is in place."""

    plan: Plan
    seen: dict[str, Seen]
    """By digest."""
    ready_at: float = 0.0


@contextlib.contextmanager
def claimed(repository: layout.Repository) -> Iterator[None]:
    """One process at a time works on a repository's files. Raises DownloadError, at once."""
    root = repository.root
    if not root.is_dir():
        raise unavailable(root)
    with contextlib.ExitStack() as stack:
        with disk_faults(root):
            try:
                stack.enter_context(locked(repository.lock, wait=False))
            except BlockingIOError:
                raise DownloadError(
                    "busy", f"Another process works on {repository.repo} in {root} already."
                ) from None
        yield


def unavailable(root: Path) -> DownloadError:
    return DownloadError(
        "folder_unavailable",
        f"The folder {root} is not there.",
        hint="Connect its drive, or choose another folder.",
    )


def read_plan(repository: layout.Repository, request: Request) -> Plan | None:
    """What the request came to when it was begun, if it was and is not ready."""
    return read_at(repository.plan(request), Plan)


def read_manifest(path: Path) -> Manifest | None:
    return read_at(path, Manifest)


def read_at(path: Path, kind: type[T]) -> T | None:
    """A record of Headrace's in a repository's folder; None where there is none that is whole."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


class Store:
    """The files of one plan."""

    def __init__(self, repository: layout.Repository, plan: Plan) -> None:
        self.repository = repository
        self.plan = plan
        self._at: dict[str, Path] = {}
        self._seen: dict[str, Seen] = {}

    def begin(self) -> None:
        """Write down what is going to be fetched, before a byte of it."""
        self.repository.own.mkdir(parents=True, exist_ok=True)
        write_whole(self.repository.plan(self.plan.request), msgspec.json.encode(self.plan))

    def present(self) -> int:
        """Bytes of the plan on disk, complete files and parts, by their sizes alone."""
        found = 0
        for file in {file.digest: file for file in self.plan.files}.values():
            if any(True for _ in self._places(file)):
                found += file.size
            else:
                with contextlib.suppress(OSError):
                    part = self.repository.part(file).stat().st_size
                    found += min(part // BLOCK * BLOCK, file.size)
        return found

    def find(self, file: RemoteFile, read: Callable[[int], None]) -> bool:
        """Whether the file is there and right. Reads it, unless it was checked and is as it was.

        `read` is told of bytes as they count as checked, and may raise to end it.
        """
        if file.digest in self._at:
            return True
        known = self._known(file)
        for place in self._places(file):
            state = place.stat()
            if known is not None and known.mtime_ns == state.st_mtime_ns:
                read(file.size)
            elif _digest(place, file, read) == file.digest:
                known = Seen(size=file.size, mtime_ns=state.st_mtime_ns)
                self._remember(file, known)
            else:
                read(-file.size)
                continue
            self._at[file.digest], self._seen[file.digest] = place, known
            return True
        return False

    def part(self, file: RemoteFile) -> Part:
        return Part(file, self.repository.part(file), self.repository.sums(file))

    def finish(self, part: Part) -> None:
        """Take over a part whose bytes are all there and right."""
        file, blob = part.file, self.repository.blob(part.file)
        part.move_to(blob)
        with disk_faults(blob):
            seen = Seen(size=file.size, mtime_ns=blob.stat().st_mtime_ns, fetched=True)
            self._remember(file, seen)
        self._at[file.digest], self._seen[file.digest] = blob, seen

    def make_ready(self) -> Path:
        """Put the snapshot together, from files that are all there and right; the manifest comes
        last. Returns what to load."""
        plan, repository = self.plan, self.repository
        missing = [file.name for file in plan.files if file.digest not in self._at]
        assert not missing, missing
        snapshot = repository.snapshot(plan.commit)
        draft = repository.links(plan.request)
        fresh = not snapshot.exists()
        draft.mkdir(parents=True, exist_ok=True)
        for file in plan.files:
            self._link(file, draft / file.name, snapshot / file.name)
        if fresh:
            repository.snapshots.mkdir(exist_ok=True)
            for folder, _, _ in os.walk(draft, topdown=False):
                sync_folder(Path(folder))
            draft.rename(snapshot)  # the whole model appears at once
            sync_folder(repository.snapshots)
        else:
            self._merge(draft, snapshot)
        if not layout.is_commit(plan.request.revision):
            ref = repository.ref(plan.request.revision)
            ref.parent.mkdir(parents=True, exist_ok=True)
            # The hub's client takes every file beside it for a branch.
            write_whole(ref, plan.commit.encode(), draft=repository.own / "ref.new")
        manifest = Manifest(plan=plan, seen=self._seen, ready_at=time.time())
        write_whole(repository.ready(plan), msgspec.json.encode(manifest))
        self._tidy()
        return snapshot / to_load(plan.files)

    def discard(self) -> int:
        """Delete what of an unfinished plan nothing else uses. Returns bytes freed."""
        freed = 0
        self.repository.plan(self.plan.request).unlink(missing_ok=True)
        shutil.rmtree(self.repository.links(self.plan.request), ignore_errors=True)
        used = _linked(self.repository)
        wanted = self._wanted_by_others()
        for file in self.plan.files:
            blob, seen = self.repository.blob(file), self._stamp(file)
            if file.digest in wanted:
                continue
            if blob.name not in used and seen is not None and seen.fetched:
                freed += _delete(blob)
            freed += _delete(self.repository.part(file))
            _delete(self.repository.sums(file))
            _delete(self.repository.seen(file))
        self._remove_empty()
        return freed

    # --- inside ---

    def _places(self, file: RemoteFile) -> Iterator[Path]:
        """Where the file may lie whole: as a blob, or, where there are no links, in a snapshot."""
        places = (
            self.repository.blob(file),
            self.repository.snapshot(self.plan.commit) / file.name,
            self.repository.links(self.plan.request) / file.name,
        )
        for place in places:
            if place.is_file() and place.stat().st_size == file.size:
                yield place

    def _known(self, file: RemoteFile) -> Seen | None:
        """When the bytes were last found right: in this download, or in one that is ready."""
        if (stamp := self._stamp(file)) is not None:
            return stamp
        for path in sorted(self.repository.own.glob("*.ready")):
            manifest = read_manifest(path)
            if manifest is not None and file.digest in manifest.seen:
                return manifest.seen[file.digest]
        return None

    def _stamp(self, file: RemoteFile) -> Seen | None:
        return read_at(self.repository.seen(file), Seen)

    def _remember(self, file: RemoteFile, seen: Seen) -> None:
        self.repository.own.mkdir(parents=True, exist_ok=True)
        write_whole(self.repository.seen(file), msgspec.json.encode(seen))

    def _link(self, file: RemoteFile, link: Path, final: Path) -> None:
        """Make `link`, which is going to be moved to `final`, lead to the file's bytes."""
        at = self._at[file.digest]
        if at in (link, final):
            return
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        try:
            link.symlink_to(os.path.relpath(at, final.parent))
        except OSError:
            # Windows without developer mode: one more name for the same bytes, and on disks that
            # have no such thing (exFAT) the snapshot gets the file itself, as the hub's client has
            # it there.
            try:
                link.hardlink_to(at)
            except OSError:
                self._give(file, link)

    def _give(self, file: RemoteFile, link: Path) -> None:
        at = self._at[file.digest]
        if at.parent == self.repository.blobs:
            at.replace(link)
            self._at[file.digest] = link
        else:
            shutil.copy2(at, link)
            with link.open("rb+") as copy:
                os.fsync(copy.fileno())

    def _merge(self, draft: Path, snapshot: Path) -> None:
        """Add to a snapshot that is there. What it holds already and is right stays as it is."""
        for file in self.plan.files:
            link, final = draft / file.name, snapshot / file.name
            if not os.path.lexists(link):
                continue
            final.parent.mkdir(parents=True, exist_ok=True)
            link.replace(final)
            sync_folder(final.parent)
        shutil.rmtree(draft)

    def _tidy(self) -> None:
        """A ready download leaves nothing behind but its manifest."""
        repository = self.repository
        repository.plan(self.plan.request).unlink(missing_ok=True)
        wanted = self._wanted_by_others()
        for path in repository.own.iterdir():
            digest = path.name.partition(".")[0]
            if path.suffix in (".part", ".sums", ".seen", ".new") and digest not in wanted:
                path.unlink(missing_ok=True)

    def _wanted_by_others(self) -> set[str]:
        digests: set[str] = set()
        for path in self.repository.own.glob("*.plan"):
            plan = read_at(path, Plan)
            if plan is not None and plan.request.id != self.plan.request.id:
                digests |= {file.digest for file in plan.files}
        return digests

    def _remove_empty(self) -> None:
        repository = self.repository
        folders = (repository.own, repository.blobs, repository.snapshots, repository.folder)
        for folder in folders:
            with contextlib.suppress(OSError):
                folder.rmdir()


def _linked(repository: layout.Repository) -> set[str]:
    """Names of the blobs that some snapshot's links lead to."""
    links = repository.snapshots.glob("**/*")
    return {path.readlink().name for path in links if path.is_symlink()}


def _delete(path: Path) -> int:
    """Returns the bytes that are free now."""
    try:
        state = path.lstat()
        path.unlink()
    except FileNotFoundError:
        return 0
    return state.st_size if state.st_nlink == 1 else 0


def _digest(path: Path, file: RemoteFile, read: Callable[[int], None]) -> str:
    digest: hashlib._Hash = digest_of(file)
    with path.open("rb") as content:
        while block := content.read(BLOCK):
            digest.update(block)
            read(len(block))
    return digest.hexdigest()
