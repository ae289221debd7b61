"""Whether a model's file is there, and is not something else that was saved in its place.

Downloads leave a pointer, a web page or half a file where weights should be; each is told by name,
with what to do. Nothing here opens what could wait for another program, such as a pipe. Torch-free.
"""

from __future__ import annotations

import contextlib
import errno
import stat
from collections.abc import Iterator
from pathlib import Path

from engine.errors import ModelFilesError
from engine.formats.hub_layout import unfinished

FETCH_AGAIN = "Fetch the model again."
_HEAD_BYTES = 512
_LFS_SIGNATURE = b"version https://git-lfs"
_XET_SIGNATURE = b"# xet version"
_PAGE_STARTS = (b"<!doctype", b"<html", b"<head", b"<?xml")
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def require_file(path: Path) -> Path:
    """`path` if it is a readable file with its own content.

    Raises ModelFilesError that says in what way it is not.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise _absent(path) from None
    except OSError as error:
        raise unreadable(path, error) from error
    if stat.S_ISDIR(mode):
        raise ModelFilesError(f"{path} is a folder where a file belongs")
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise ModelFilesError(f"{path} is {kind} where a file belongs")
    control = path.with_name(f"{path.name}.aria2")
    if control.exists():
        raise ModelFilesError(
            f"{path} is still arriving: {control.name} lies beside it",
            hint="Let aria2 end the download, or start it again.",
        )
    try:
        with path.open("rb") as file:
            _refuse_stand_in(path, file.read(_HEAD_BYTES))
    except OSError as error:
        raise unreadable(path, error) from error
    return path


def is_there(path: Path) -> bool:
    """Whether the path leads to anything. Raises OSError where the system does not let it be seen,
    as for a link that leads back to itself."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def unreadable(path: Path, error: OSError) -> ModelFilesError:
    """What the system says against reading a file or folder, as a typed error."""
    if error.errno == errno.ELOOP:
        return ModelFilesError(f"{path} is a link that leads back to itself")
    return ModelFilesError(f"{path} cannot be read: {error.strerror or error}")


@contextlib.contextmanager
def looking_at(path: Path) -> Iterator[None]:
    """What a folder on the way refuses, such as listing it, becomes a typed error."""
    try:
        yield
    except OSError as error:
        raise unreadable(Path(error.filename or path), error) from error


def begins_as_text(head: bytes) -> str:
    """The first line of what is plain ASCII text; "" for anything else."""
    if not head.isascii() or not head.strip():
        return ""
    first = head.decode("ascii").strip().splitlines()[0]
    return first[:80] if first.isprintable() else ""


def _refuse_stand_in(path: Path, head: bytes) -> None:
    if head.startswith(_LFS_SIGNATURE):
        raise ModelFilesError(
            f"{path} is a git-LFS pointer: it stands for the file, which was not fetched",
            hint=f"Run `git lfs install` once, then `git lfs pull` in {path.parent}.",
        )
    if head.startswith(_XET_SIGNATURE):
        raise ModelFilesError(
            f"{path} is a Xet pointer: it stands for the file, which was not fetched",
            hint="Fetch the model with the hub's own client.",
        )
    if head.lstrip().lower().startswith(_PAGE_STARTS):
        raise ModelFilesError(
            f"{path} is a web page, saved in the file's place",
            hint="Fetch the file itself: the page's link for downloading, or the hub's own client.",
        )


def _absent(path: Path) -> ModelFilesError:
    if path.is_symlink():
        return ModelFilesError(
            f"{path} is a link to {path.readlink()}, which is not there: the download is "
            "unfinished",
            hint=FETCH_AGAIN,
        )
    partial = unfinished(path.parent, path.name)
    beside = f" ({', '.join(partial)} is there)" if partial else ""
    return ModelFilesError(
        f"{path} is missing{beside}: the download is incomplete", hint=FETCH_AGAIN
    )
