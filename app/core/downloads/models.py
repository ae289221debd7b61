"""What the library tells of models on disk. They lie in its memory, so they only gain fields."""

from __future__ import annotations

from enum import StrEnum

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
    identity: str = ""
    """Device and inode: a mount point without its drive has others than the drive had."""


class Deletion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What deleting a model does."""

    freed: int
    """Bytes that become free."""
    kept: int = 0
    """Bytes of it that other models use, or that lie outside the folder: they stay."""
    removed: tuple[str, ...] = ()
    """Files and links that go, absolute."""
