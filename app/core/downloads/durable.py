"""Files that survive a power cut whole, and disk faults as a person should hear of them."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from app.core.downloads.errors import DownloadError
from engine.private_files import replace

_FULL = {errno.ENOSPC, errno.EDQUOT}
_GONE = {
    *(errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EIO),
    *(errno.ENODEV, errno.ENXIO, errno.ESTALE if hasattr(errno, "ESTALE") else errno.EIO),
}


@contextlib.contextmanager
def disk_faults(place: Path) -> Iterator[None]:
    """Raises DownloadError for an OSError of the disk that `place` lies on."""
    try:
        yield
    except OSError as error:
        raise disk_fault(error, place) from error


def disk_fault(error: OSError, place: Path) -> DownloadError:
    what = error.strerror or str(error)
    if error.errno in _FULL:
        return DownloadError(
            "disk_full",
            f"The disk of {place} is full.",
            hint="Make room and resume: what was fetched is kept.",
        )
    if error.errno == errno.EFBIG:
        return DownloadError(
            "disk_full",
            f"The file system of {place} takes no file of this size.",
            hint="FAT32 ends at 4 GiB: choose a folder on another disk.",
        )
    if error.errno in _GONE:
        return DownloadError(
            "folder_unavailable",
            f"{error.filename or place} cannot be used: {what}.",
            hint="Is its drive connected, and may you write to it? Then resume.",
        )
    return DownloadError("folder_unavailable", f"{error.filename or place}: {what}.")


def sync_folder(folder: Path) -> None:
    """Names made or replaced in it stay after a power cut. Windows has no such call."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems sync no folder
            raise
    finally:
        os.close(handle)


def write_whole(path: Path, content: bytes, draft: Path | None = None) -> None:
    """Replace a file at once and durably; `draft` is where it is written first. Raises OSError."""
    draft = draft or path.with_name(f"{path.name}.new")
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
