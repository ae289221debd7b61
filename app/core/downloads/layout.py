"""The hub's cache layout, and what Headrace keeps in it.

    ROOT/models--org--name/blobs/DIGEST            a file's bytes, complete
                           snapshots/COMMIT/NAME   a link to its blob
                           refs/BRANCH             the commit that a branch was
                           .headrace/ID.plan       a download that is not ready
                           .headrace/ID.COMMIT.ready  written last: one that is
                           .headrace/ID.links/     a snapshot that is being put together
                           .headrace/DIGEST.part   bytes of a file that is not complete
                           .headrace/DIGEST.sums   their checksums
                           .headrace/DIGEST.seen   when a complete file was checked

No program takes what lies under `.headrace` for a model's file.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from app.core.downloads.errors import DownloadError
from app.core.downloads.records import Plan, RemoteFile, Request

OWN = ".headrace"
_REPO = re.compile(r"[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
# What Windows takes for a drive, a stream or a pattern, and what no system has in a name.
_NOT_IN_NAMES = re.compile(r'[\\:*?"<>|\x00-\x1f]')


def hub_home() -> Path:
    """Where the hub's own programs keep their files: HF_HOME, else in the user's caches."""
    if home := os.environ.get("HF_HOME"):
        return Path(home).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface"


def hub_cache() -> Path:
    """Where the hub's own programs keep models: HF_HUB_CACHE, else `hub` in their folder."""
    cache = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(cache).expanduser() if cache else hub_home() / "hub"


def root_of(request: Request) -> Path:
    return Path(request.root).expanduser().absolute() if request.root else hub_cache()


def is_commit(revision: str) -> bool:
    return _COMMIT.fullmatch(revision) is not None


def check_name(name: str) -> None:
    """Raises DownloadError for a file's name that would lead elsewhere."""
    parts = name.split("/")
    if _NOT_IN_NAMES.search(name) or any(part.strip(". ") == "" for part in parts):
        raise DownloadError("hub", f"The repository names a file {name!r}, which is not a path.")


def check_request(request: Request) -> None:
    """Raises DownloadError where repository or revision cannot be ones."""
    repo = request.repo
    if not _REPO.fullmatch(repo) or "--" in repo or ".." in repo or len(repo) > 96:
        raise DownloadError(
            "not_found",
            f"{repo!r} is not a repository's name.",
            hint="It looks like organisation/name.",
        )
    revision = request.revision
    if _NOT_IN_NAMES.search(revision) or any(not p.strip(". ") for p in revision.split("/")):
        raise DownloadError("not_found", f"{revision!r} is not a revision's name.")


@dataclass(frozen=True)
class Repository:
    """The places of one repository in a root."""

    root: Path
    repo: str

    @classmethod
    def of(cls, request: Request) -> Repository:
        check_request(request)
        return cls(root_of(request), request.repo)

    @property
    def folder_name(self) -> str:
        return "models--" + self.repo.replace("/", "--")

    @property
    def folder(self) -> Path:
        return self.root / self.folder_name

    @property
    def own(self) -> Path:
        return self.folder / OWN

    @property
    def blobs(self) -> Path:
        return self.folder / "blobs"

    @property
    def snapshots(self) -> Path:
        return self.folder / "snapshots"

    @property
    def lock(self) -> Path:
        """Beside the hub's own locks, so that a repository's folder can be deleted whole."""
        return self.root / ".locks" / self.folder_name / "headrace.lock"

    def blob(self, file: RemoteFile) -> Path:
        return self.blobs / file.digest

    def part(self, file: RemoteFile) -> Path:
        return self.own / f"{file.digest}.part"

    def sums(self, file: RemoteFile) -> Path:
        return self.own / f"{file.digest}.sums"

    def seen(self, file: RemoteFile) -> Path:
        return self.own / f"{file.digest}.seen"

    def plan(self, request: Request) -> Path:
        return self.own / f"{request.id}.plan"

    def ready(self, plan: Plan) -> Path:
        """A later commit of the same request has its own."""
        return self.own / f"{plan.request.id}.{plan.commit}.ready"

    def links(self, request: Request) -> Path:
        return self.own / f"{request.id}.links"

    def snapshot(self, commit: str) -> Path:
        return self.snapshots / commit

    def ref(self, revision: str) -> Path:
        return self.folder / "refs" / PurePosixPath(revision)
