"""The models on disk: what is there, whether it is whole, what it takes, and deleting it.

`Library.scan` and `delete` read and write the disk: call them in a thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

import msgspec

from app.core.downloads.records import Request


class Standing(StrEnum):
    READY = "ready"
    """Fetched by Headrace and checked: every byte is the hub's."""
    FOREIGN = "foreign"
    """Put there by somebody else. Its files are all there and whole by their own headers; nobody
    has compared checksums."""
    PARTIAL = "partial"
    """Something is missing; `note` says what. `request` is set where Headrace began it."""
    UNAVAILABLE = "unavailable"
    """Its folder cannot be read now; this is what was seen last."""


class Model(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model in a folder."""

    root: str
    """The folder that was scanned."""
    name: str
    """`organisation/name` of the hub's layout, else the file's or folder's name; with the file's
    name where a repository holds several models."""
    path: str
    """What to load: a folder or a GGUF file."""
    standing: Standing
    size: int = 0
    """Bytes on disk. A blob that two of its files share counts once."""
    total: int = 0
    """What `size` will be when a partial model is complete; 0 where nobody knows."""
    commit: str = ""
    """The commit of the hub that it is, where the folder's layout tells."""
    files: tuple[str, ...] = ()
    """Absolute paths that belong to it, links not followed."""
    note: str = ""
    """What is wrong, or worth knowing."""
    request: Request | None = None
    """How Headrace fetched it, or was fetching it: `Downloads.add(request)` goes on."""


class Folder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of the folders that are looked through."""

    path: str
    available: bool = True
    reason: str = ""
    """Why it is not available."""
    models: tuple[Model, ...] = ()
    size: int = 0
    """Bytes of all its models; what several share counts once."""
    free: int = 0
    """Bytes free on its disk."""


class Deletion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What deleting a model does."""

    freed: int
    """Bytes that become free."""
    kept: int = 0
    """Bytes of it that other models use, or that lie outside the folder: they stay."""
    removed: tuple[str, ...] = ()
    """Files and links that go, absolute."""


class Library:
    """What lies in the folders, and a memory of those that are unavailable."""

    def __init__(self, memory: Path | None = None) -> None:
        """`memory` is the file that remembers; by default `library.json` in Headrace's folder."""
        raise NotImplementedError

    def scan(self, roots: Sequence[Path]) -> tuple[Folder, ...]:
        """Look through the folders. One that cannot be read is listed with what was seen last."""
        raise NotImplementedError

    def remembered(self, roots: Sequence[Path]) -> tuple[Folder, ...]:
        """What was seen last, at once and without looking at the disk."""
        raise NotImplementedError


def deletion(model: Model) -> Deletion:
    """What `delete` would do. Raises DownloadError where the folder is unavailable."""
    raise NotImplementedError


def delete(model: Model) -> Deletion:
    """Delete the model's files: never outside its root, and no link is followed out of it.

    Raises DownloadError naming what could not be deleted.
    """
    raise NotImplementedError
