"""Ranges of files arrive whole and where they belong; what goes wrong is told with its place."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy
import pytest
import torch

from engine.errors import ModelFilesError
from engine.formats.tensor_info import FileRange
from engine.native import file_reads
from engine.native.file_reads import read_ranges
from engine.native.library import READ_SIGNATURES, Library
from installers.native import compiler_name
from tests.project.checkout import ROOT

MIB = 1 << 20


@pytest.fixture(params=["library", "python"])
def reader(request: pytest.FixtureRequest) -> Library | None:
    """What reads: the library, or Python's threads where it was not built."""
    if request.param == "python":
        return None
    built: Library = request.getfixturevalue("built")
    return built


def write(path: Path, nbytes: int, seed: int = 0) -> bytes:
    content = random.Random(seed).randbytes(nbytes)
    path.write_bytes(content)
    with path.open("rb") as file:
        os.fsync(file.fileno())
        forget(file.fileno())
    return content


def forget(descriptor: int) -> None:
    """Without its pages in the system's cache a file is read from the disk."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def cached_share(path: Path) -> float:
    """Of the file's pages, those in the system's cache."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        view = numpy.frombuffer(mapped, numpy.uint8)
        pages = -(-len(mapped) // mmap.PAGESIZE)
        answer = (ctypes.c_ubyte * pages)()
        libc = ctypes.CDLL(None)
        libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
        assert libc.mincore(view.ctypes.data, len(mapped), answer) == 0
        del view
    return sum(page & 1 for page in answer) / pages


def folders(tmp_path: Path) -> list[Path]:
    """A disk, and where there is one a file system in memory, which may refuse direct reads."""
    found = [tmp_path]
    if Path("/dev/shm").is_dir() and os.access("/dev/shm", os.W_OK):
        in_memory = Path("/dev/shm") / f"headrace-test-{os.getpid()}"
        in_memory.mkdir(exist_ok=True)
        found.append(in_memory)
    return found


def test_ranges_of_any_alignment_arrive_and_nothing_else_is_touched(
    reader: Library | None, tmp_path: Path
) -> None:
    draw = random.Random(3)
    places = folders(tmp_path)
    try:
        contents = {}
        for number, folder in enumerate(places):
            for name, nbytes in (("a", 9 * MIB + 17), ("ä b", 70_001), ("c", 4096)):
                contents[folder / name] = write(folder / name, nbytes, number)
        target = torch.full((40 * MIB,), 0xEE, dtype=torch.uint8)
        expected = bytearray(target.numpy().tobytes())
        ranges, at = [], draw.randrange(64)
        for path, content in contents.items():
            for _ in range(60):
                nbytes = draw.choice([1, 4, 63, 4096, 40_000, draw.randrange(1, len(content))])
                offset = draw.randrange(max(1, len(content) - nbytes + 1))
                nbytes = min(nbytes, len(content) - offset, 300_000)
                ranges.append((FileRange(path, offset, nbytes), target.data_ptr() + at))
                expected[at : at + nbytes] = content[offset : offset + nbytes]
                at += nbytes + draw.randrange(100)
        whole = next(iter(contents))
        at += -(target.data_ptr() + at) % 4096
        ranges.append((FileRange(whole, 0, 9 * MIB + 17), target.data_ptr() + at))
        expected[at : at + 9 * MIB + 17] = contents[whole]
        draw.shuffle(ranges)
        told: list[int] = []
        with read_ranges(reader, ranges, 3) as reading:
            reading.finish(told.append)
        assert target.numpy().tobytes() == expected
        assert told == sorted(told) and told[-1] == sum(wanted.nbytes for wanted, _ in ranges)
    finally:
        for folder in places[1:]:
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()


def test_nothing_to_read_is_no_error(reader: Library | None, tmp_path: Path) -> None:
    with read_ranges(reader, []) as reading:
        reading.finish(lambda done: None)
    write(tmp_path / "empty", 0)
    with read_ranges(reader, [(FileRange(tmp_path / "empty", 0, 0), 0)]) as reading:
        reading.finish()


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux what its cache holds")
def test_the_system_s_cache_is_left_as_it_was(reader: Library | None, tmp_path: Path) -> None:
    path = tmp_path / "model"
    content = write(path, 16 * MIB)
    if cached_share(path) > 0.5:
        pytest.skip("this file system keeps its files in memory")
    target = torch.zeros(16 * MIB, dtype=torch.uint8)
    with read_ranges(reader, [(FileRange(path, 5, 16 * MIB - 5), target.data_ptr())]) as reading:
        reading.finish()
    assert cached_share(path) < 0.1
    assert target.numpy().tobytes()[: 16 * MIB - 5] == content[5:]
    if reader is None:
        return
    # What is cached already comes from there, and stays.
    path.read_bytes()
    with read_ranges(reader, [(FileRange(path, 5, 16 * MIB - 5), target.data_ptr())]) as reading:
        reading.finish()
    assert isinstance(reading, file_reads._NativeReading) and reading.direct_bytes == 0
    assert cached_share(path) > 0.9
    assert target.numpy().tobytes()[: 16 * MIB - 5] == content[5:]


def test_a_file_that_ends_early_is_named_with_the_byte(
    reader: Library | None, tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    write(path, 5 * MIB + 100)
    target = torch.zeros(2 * MIB, dtype=torch.uint8)
    wanted = FileRange(path, 4 * MIB, 2 * MIB)
    with (
        pytest.raises(ModelFilesError, match=f"{path} ends at byte {5 * MIB + 100}, in the"),
        read_ranges(reader, [(wanted, target.data_ptr())]) as reading,
    ):
        reading.finish()


def test_a_file_that_is_not_there_is_named(reader: Library | None, tmp_path: Path) -> None:
    target = torch.zeros(8, dtype=torch.uint8)
    wanted = FileRange(tmp_path / "gone", 0, 8)
    with (
        pytest.raises(ModelFilesError, match="gone cannot be read: No such file"),
        read_ranges(reader, [(wanted, target.data_ptr())]) as reading,
    ):
        reading.finish()


@pytest.mark.skipif(sys.platform != "linux", reason="needs a file whose reads fail")
def test_a_read_that_fails_is_named_with_byte_and_reason(reader: Library | None) -> None:
    target = torch.zeros(8, dtype=torch.uint8)
    wanted = FileRange(Path("/proc/self/mem"), 0, 8)  # no process has memory there
    with (
        pytest.raises(ModelFilesError, match="mem cannot be read at byte 0: Input/output error"),
        read_ranges(reader, [(wanted, target.data_ptr())]) as reading,
    ):
        reading.finish()


@pytest.mark.parametrize("harm", ["written", "longer", "shorter", "replaced", "deleted"])
def test_a_file_that_changes_while_it_is_read_is_refused(
    reader: Library | None, tmp_path: Path, harm: str
) -> None:
    path = tmp_path / "model.safetensors"
    write(path, MIB)
    os.utime(path, (1, 1))
    target = torch.zeros(MIB, dtype=torch.uint8)

    def change(done: int) -> None:
        if harm == "written":
            with path.open("r+b") as file:
                file.write(b"x")
        elif harm in ("longer", "shorter"):
            os.truncate(path, MIB + (1 if harm == "longer" else -1))
        elif harm == "deleted":
            path.unlink(missing_ok=True)
        else:
            (tmp_path / "new").write_bytes(b"y" * MIB)
            (tmp_path / "new").replace(path)

    told = "cannot be read" if harm == "deleted" else "was written to|ends at byte"
    with (
        pytest.raises(ModelFilesError, match=told),
        read_ranges(reader, [(FileRange(path, 0, MIB), target.data_ptr())]) as reading,
    ):
        reading.finish(change)


def assert_untouched_from_now_on(target: torch.Tensor) -> None:
    before = target.clone()
    time.sleep(0.05)
    assert torch.equal(target, before)


class Cancelled(Exception):
    pass


def test_what_progress_raises_ends_the_reads(reader: Library | None, tmp_path: Path) -> None:
    write(tmp_path / "model", 24 * MIB)
    target = torch.zeros(24 * MIB, dtype=torch.uint8)
    ranges = [
        (FileRange(tmp_path / "model", i * MIB, MIB), target.data_ptr() + i * MIB)
        for i in range(24)
    ]

    def cancel(done: int) -> None:
        raise Cancelled

    with pytest.raises(Cancelled), read_ranges(reader, ranges, 2) as reading:
        reading.finish(cancel)
    assert_untouched_from_now_on(target)


def test_a_block_that_ends_without_finish_leaves_no_reader(
    reader: Library | None, tmp_path: Path
) -> None:
    write(tmp_path / "model", 24 * MIB)
    target = torch.zeros(24 * MIB, dtype=torch.uint8)
    with read_ranges(reader, [(FileRange(tmp_path / "model", 0, 24 * MIB), target.data_ptr())], 2):
        pass
    assert_untouched_from_now_on(target)


def test_a_model_that_nobody_may_write_to_is_read(reader: Library | None, tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    content = write(folder / "model", 70_000)
    (folder / "model").chmod(stat.S_IRUSR)
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    target = torch.zeros(70_000, dtype=torch.uint8)
    try:
        with read_ranges(
            reader, [(FileRange(folder / "model", 0, 70_000), target.data_ptr())]
        ) as reading:
            reading.finish()
    finally:
        folder.chmod(stat.S_IRWXU)
    assert target.numpy().tobytes() == content


def test_the_header_and_the_loader_name_the_same_functions() -> None:
    header = (ROOT / "engine/native/source/headrace_files.h").read_text(encoding="utf-8")
    for name in READ_SIGNATURES:
        assert f" {name}(" in header or f"*{name}(" in header


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="GCC's and Clang's sanitizers")
@pytest.mark.skipif(not compiler_name(), reason="needs a C++ compiler")
@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_the_sanitizers_find_nothing(sanitizers: str, tmp_path: Path) -> None:
    source = ROOT / "engine/native/source"
    compiler = os.environ.get("CXX") or shutil.which("c++") or "g++"
    flags = ["-std=c++20", "-O1", "-g", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    files = [ROOT / "tests/native/file_reads.cpp", source / "file_posix.cpp"]
    program = tmp_path / "check"
    build = [compiler, *flags, f"-I{source}", *files, source / "file_reads.cpp", "-pthread"]
    subprocess.run([*build, "-o", program], check=True)
    for folder in folders(tmp_path):
        path = folder / "content"
        try:
            outcome = subprocess.run(
                [program, path], capture_output=True, text=True, check=False, timeout=300
            )
        finally:
            path.unlink(missing_ok=True)
            if folder != tmp_path:
                folder.rmdir()
        assert (outcome.returncode, outcome.stdout) == (0, "0 wrong\n"), outcome.stderr
