"""Ranges of files, read in parallel straight to where they belong in memory. Torch-free.

The library's own threads read past the system's cache where the file system allows it
(`source/file_reads.cpp`); without the library Python's threads read through the cache.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from ctypes import c_char_p
from pathlib import Path
from types import TracebackType
from typing import Protocol

from engine.errors import ModelFilesError, OutOfMemory
from engine.formats.tensor_info import FileRange
from engine.native.library import Library
from engine.native.structures import ReadOutcome

READERS = 8
"""Threads that wait for the disk, whatever the number of cores: a fast disk wants so many requests
at once."""
POLL_SECONDS = 0.1

BytesDone = Callable[[int], None]
"""Called with the bytes in place, a few times a second."""

_OK, _CANCELLED, _CANNOT_OPEN, _FAILED, _SHORT, _CHANGED, _OUT_OF_MEMORY = range(7)


class Reading(Protocol):
    """Reads that go on in the background. Memory that they fill must stay until `finish`, or the
    end of the `with` block, which cancels what has not been finished."""

    def finish(self, progress: BytesDone | None = None) -> None:
        """Wait until all is in place. What `progress` raises cancels the rest and is passed on.

        Raises ModelFilesError that names the file, and the byte where that is known, for one that
        cannot be read, ends early or was written to meanwhile; OutOfMemory.
        """

    def __enter__(self) -> Reading: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def read_ranges(
    native: Library | None, ranges: Sequence[tuple[FileRange, int]], readers: int = READERS
) -> Reading:
    """Begin to read each range to its address."""
    if native is None:
        return _PlainReading(ranges, readers)
    return _NativeReading(native, ranges, readers)


class _NativeReading:
    def __init__(
        self, native: Library, ranges: Sequence[tuple[FileRange, int]], readers: int
    ) -> None:
        self.direct_bytes = 0
        self._functions = native.functions
        files = list(dict.fromkeys(wanted.file for wanted, _ in ranges))
        numbers = {file: number for number, file in enumerate(files)}
        table = array("q")
        for wanted, address in ranges:
            table.extend((numbers[wanted.file], wanted.offset, wanted.nbytes, address))
        paths = (c_char_p * len(files))(*map(_system_path, files))
        at = table.buffer_info()[0]
        self._files = files
        self._handle = self._functions.headrace_read_begin(
            paths, len(files), at, len(ranges), readers
        )
        if not self._handle:
            raise OutOfMemory("There is no memory to read the model's files with.")

    def finish(self, progress: BytesDone | None = None) -> None:
        milliseconds = int(POLL_SECONDS * 1000)
        while not self._functions.headrace_read_wait(self._handle, milliseconds):
            self._tell(progress)
        self._tell(progress)
        status, outcome = self._end()
        self.direct_bytes = outcome.direct
        if status == _OUT_OF_MEMORY:
            raise OutOfMemory("There is no memory to read the model's files with.")
        if status != _OK:
            file = self._files[outcome.file]
            raise _refusal(status, file, outcome.offset, outcome.system_error)

    def _tell(self, progress: BytesDone | None) -> None:
        if progress is not None:
            progress(self._functions.headrace_read_done(self._handle))

    def _end(self) -> tuple[int, ReadOutcome]:
        outcome = ReadOutcome()
        handle, self._handle = self._handle, None
        return self._functions.headrace_read_end(handle, outcome), outcome

    def __enter__(self) -> _NativeReading:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._handle:
            self._functions.headrace_read_cancel(self._handle)
            self._end()


def _system_path(file: Path) -> bytes:
    return str(file).encode() if sys.platform == "win32" else os.fsencode(file)


def _refusal(status: int, file: Path, offset: int, system_error: int) -> ModelFilesError:
    if status == _SHORT:
        return _ends_early(file, offset)
    if status == _CHANGED:
        return _changed(file)
    if sys.platform == "win32":
        reason = ctypes.FormatError(system_error)
    else:
        reason = os.strerror(system_error)
    at = f" at byte {offset}" if status == _FAILED else ""
    return ModelFilesError(f"{file} cannot be read{at}: {reason}")


def _ends_early(file: Path, offset: int) -> ModelFilesError:
    return ModelFilesError(
        f"{file} ends at byte {offset}, in the middle of a tensor", hint="Fetch the model again."
    )


def _changed(file: Path) -> ModelFilesError:
    return ModelFilesError(
        f"{file} was written to while it was read",
        hint="Let the download or the program that writes it end, and load the model again.",
    )


class _PlainReading:
    """The same without the library: through the system's cache, which is then asked to let go."""

    def __init__(self, ranges: Sequence[tuple[FileRange, int]], readers: int) -> None:
        self._done = 0
        self._before = {wanted.file: _state_of(wanted.file) for wanted, _ in ranges}
        self._pool = ThreadPoolExecutor(readers, "reader")
        self._reads = [self._pool.submit(_read, wanted, address) for wanted, address in ranges]

    def finish(self, progress: BytesDone | None = None) -> None:
        waiting: set[Future[int]] = set(self._reads)
        while waiting:
            ended, waiting = wait_for(waiting, POLL_SECONDS)
            self._done += sum(read.result() for read in ended)
            if progress is not None:
                progress(self._done)
        for file, before in self._before.items():
            if _state_of(file) != before:
                raise _changed(file)
        self._pool.shutdown()

    def __enter__(self) -> _PlainReading:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(cancel_futures=True)


def _state_of(file: Path) -> tuple[int, int]:
    try:
        facts = file.stat()
    except OSError as error:
        raise ModelFilesError(f"{file} cannot be read: {error.strerror or error}") from error
    return facts.st_size, facts.st_mtime_ns


def _read(wanted: FileRange, address: int) -> int:
    target = memoryview((ctypes.c_ubyte * wanted.nbytes).from_address(address)).cast("B")
    done = 0
    try:
        with wanted.file.open("rb", buffering=0) as file:
            file.seek(wanted.offset)
            while done < wanted.nbytes:
                got = file.readinto(target[done:])
                if not got:
                    raise _ends_early(wanted.file, wanted.offset + done)
                done += got
            if hasattr(os, "posix_fadvise"):
                with contextlib.suppress(OSError):
                    os.posix_fadvise(
                        file.fileno(), wanted.offset, wanted.nbytes, os.POSIX_FADV_DONTNEED
                    )
    except OSError as error:
        raise ModelFilesError(
            f"{wanted.file} cannot be read at byte {wanted.offset + done}: "
            f"{error.strerror or error}"
        ) from error
    return done
