"""A file while it is fetched: appended to, resumable after any end of the process or the power.

Beside the bytes lies a checksum of every complete block. Resuming reads the bytes again and keeps
the blocks that are as they were received: what a power cut lost or mixed up is found out, whatever
order the disk wrote in, and is fetched again. Whether the bytes are the right ones is decided by
the digest of all of them alone.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable
from pathlib import Path

from app.core.downloads.durable import disk_fault, sync_folder
from app.core.downloads.errors import DownloadError
from app.core.downloads.records import RemoteFile
from engine.private_files import replace

BLOCK = 1 << 20
_SYNC = 64 * BLOCK
"""A power cut costs about so much of each file."""
_SUM = 4


def digest_of(file: RemoteFile) -> hashlib._Hash:
    """The hub's digest of the file, before its first byte."""
    if file.sha256:
        return hashlib.sha256()
    # Git's blob; not for security, the hub has nothing else for small files.
    return hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)


class Part:
    """The bytes of `file` so far. Not for several threads at once."""

    def __init__(self, file: RemoteFile, path: Path, sums: Path) -> None:
        self.file = file
        self._path, self._sums = path, sums
        self._bytes: int | None = None
        self._marks = -1
        self._unsynced = 0
        self._begin()

    def _begin(self) -> None:
        self.size = 0
        self._digest = digest_of(self.file)
        self._crc = 0

    @property
    def complete(self) -> bool:
        return self.size == self.file.size

    def recover(self, read: Callable[[int], None]) -> None:
        """Take over what an earlier run left; `read` is told of bytes as they are checked.

        `read` may raise to end it. Raises DownloadError for faults of the disk.
        """
        try:
            if self._path.is_file() and self._sums.is_file():
                marks = self._sums.read_bytes()
                with self._path.open("rb") as bytes_:
                    for at in range(0, len(marks) // _SUM * _SUM, _SUM):
                        block = bytes_.read(BLOCK)
                        whole = len(block) == BLOCK and self.size + BLOCK <= self.file.size
                        if not whole or zlib.crc32(block) != int.from_bytes(marks[at : at + _SUM]):
                            break
                        self._digest.update(block)
                        self.size += BLOCK
                        read(BLOCK)
            self._cut()
        except OSError as error:
            raise disk_fault(error, self._path) from error

    def append(self, data: bytes) -> None:
        """Write bytes that follow. Raises DownloadError when the disk does not take them; what
        stays then ends with a complete block."""
        try:
            self._open()
            at = 0
            while at < len(data):
                piece = memoryview(data)[at : at + BLOCK - self.size % BLOCK]
                self._write(piece)
                at += len(piece)
            self._unsynced += len(data)
            if self._unsynced >= _SYNC and self._bytes is not None:
                os.fsync(self._bytes)
                self._unsynced = 0
        except OSError as error:
            self.close()
            raise disk_fault(error, self._path) from error

    def _write(self, piece: memoryview) -> None:
        """Write a piece that lies within one block."""
        assert self._bytes is not None
        left = piece
        while left:
            left = left[os.write(self._bytes, left) :]
        self._digest.update(piece)
        self._crc = zlib.crc32(piece, self._crc)
        self.size += len(piece)
        if self.size % BLOCK == 0:
            os.write(self._marks, self._crc.to_bytes(_SUM))
            self._crc = 0

    def right(self) -> bool:
        """Whether these are all bytes, and the hub's."""
        return self.complete and self._digest.hexdigest() == self.file.digest

    def move_to(self, blob: Path) -> None:
        """Make the checked bytes the file's blob. Raises DownloadError."""
        assert self.right()
        try:
            self._open()  # a file of no bytes too
            assert self._bytes is not None
            os.fsync(self._bytes)
            self._require_size()
            self._close_files()
            blob.parent.mkdir(parents=True, exist_ok=True)
            replace(self._path, blob)
            sync_folder(blob.parent)
            self._sums.unlink(missing_ok=True)
        except OSError as error:
            self.close()
            raise disk_fault(error, self._path) from error

    def discard(self) -> None:
        """Delete the bytes and begin anew."""
        self._close_files()
        self._sums.unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)
        self._begin()

    def close(self) -> None:
        """Keep the complete blocks and close the files."""
        self._close_files()
        try:
            self._cut()
        except OSError:
            return  # the disk is at fault, and the next run checks every block

    def _cut(self) -> None:
        """What goes beyond the last complete block has no checksum: it goes."""
        if not self._path.exists():
            self._sums.unlink(missing_ok=True)
            return
        blocks = self.size // BLOCK
        if self._path.stat().st_size > blocks * BLOCK:
            os.truncate(self._path, blocks * BLOCK)
        if self._sums.exists() and self._sums.stat().st_size > blocks * _SUM:
            os.truncate(self._sums, blocks * _SUM)

    def _open(self) -> None:
        if self._bytes is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
            self._bytes = os.open(self._path, flags, 0o666)
            self._marks = os.open(self._sums, flags, 0o666)
            self._require_size()

    def _require_size(self) -> None:
        """The digest is that of what was written here: nobody else may have written too."""
        assert self._bytes is not None
        if (there := os.fstat(self._bytes).st_size) != self.size:
            raise DownloadError(
                "busy",
                f"{self._path} has {there} bytes where {self.size} were written: "
                "another program writes to it.",
            )

    def _close_files(self) -> None:
        if self._bytes is not None:
            os.close(self._bytes)
            self._bytes = None
            if self._marks >= 0:
                os.close(self._marks)
                self._marks = -1


def wrong_bytes(file: RemoteFile) -> DownloadError:
    return DownloadError(
        "checksum",
        f"What came as {file.name} is not what the hub's checksum promises, twice in a row.",
        hint="Something between here and the hub changes it: a mirror, a proxy, a virus scanner.",
    )
