"""What lies where a model's file should be: pointers, pages, half downloads, pipes, refusals."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.chat.model_files import locate
from engine.chat.text_model import load_text_model
from engine.errors import HeadraceError, ModelFilesError, ModelNotFound
from engine.formats.checkpoint import open_checkpoint
from tests.formats.checkpoints import write_sharded

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 4966157032\n" % 7
XET = b"# xet version 0\nfilesize = 4966157032\nhash = '00'\n"
PAGE = b"\n<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>\n"
SHARD = "model-00002-of-00003.safetensors"
INDEX = "model.safetensors.index.json"

posix = pytest.mark.skipif(os.name == "nt", reason="files of POSIX systems")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_sharded(tmp_path / "tiny")


def refusal(path: Path) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        open_checkpoint(path)
    return caught.value


@pytest.mark.parametrize("name", [SHARD, INDEX, "config.json"])
@pytest.mark.parametrize(
    ("content", "says", "hint"),
    [
        (LFS, "git-LFS pointer", "git lfs pull"),
        (XET, "Xet pointer", "hub's own client"),
        (PAGE, "web page", "Fetch the file itself"),
    ],
)
def test_what_stands_for_a_file_is_told_by_name(
    model: Path, name: str, content: bytes, says: str, hint: str
) -> None:
    (model / name).write_bytes(content)
    error = refusal(model)
    assert isinstance(error, ModelFilesError)
    assert str(model / name) in error.message and says in error.message
    assert hint in error.hint


def test_a_pointer_in_the_place_of_a_gguf_file_or_a_tokenizer(tmp_path: Path, model: Path) -> None:
    (tmp_path / "small.gguf").write_bytes(LFS)
    for read in (open_checkpoint, lambda path: load_text_model(locate(str(path)))):
        with pytest.raises(ModelFilesError, match="git-LFS pointer"):
            read(tmp_path / "small.gguf")
    (model / "tokenizer.json").write_bytes(LFS)
    with pytest.raises(ModelFilesError, match=r"tokenizer\.json is a git-LFS pointer"):
        load_text_model(locate(str(model)))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"Entry not found", "text instead of weights: 'Entry not found'"),
        (b'{"error":"Access to model acme/tiny is restricted"}', "Access to model acme/tiny"),
        (bytes(4096), "begins with zeros"),
    ],
)
def test_what_a_server_or_a_disk_left_is_shown(model: Path, content: bytes, says: str) -> None:
    (model / SHARD).write_bytes(content)
    assert says in refusal(model).message


def test_a_file_that_aria2_has_not_ended_is_not_believed(model: Path) -> None:
    """It has its whole size from the start, and zeros where nothing has arrived."""
    (model / f"{SHARD}.aria2").write_bytes(b"")
    error = refusal(model)
    assert f"{SHARD} is still arriving" in error.message and "aria2" in error.hint


def pipe(path: Path) -> None:
    os.mkfifo(path)


def bound_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(path.parent)  # an address has room for a short name only
        try:
            listener.bind(path.name)
        finally:
            os.chdir(here)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


@posix
@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", [SHARD, INDEX, "config.json", "tokenizer.json", ""])
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (pipe, "is a pipe"),
        (bound_socket, "is a socket"),
        (device, "is a device"),
        (loop, "leads back to itself"),
        (Path.mkdir, "folder"),
    ],
    ids=["pipe", "socket", "device", "loop", "folder"],
)
def test_what_is_no_file_is_refused_and_not_waited_for(
    model: Path, tmp_path: Path, name: str, make: Callable[[Path], None], says: str
) -> None:
    path = model / name if name else tmp_path / "odd.gguf"
    path.unlink(missing_ok=True)
    make(path)
    asked = model if name else path
    with pytest.raises(HeadraceError) as caught:
        if name != "tokenizer.json":
            open_checkpoint(asked)
        load_text_model(locate(str(asked)))
    if name or make is not Path.mkdir:
        assert str(path) in caught.value.message and says in caught.value.message


def test_a_path_that_goes_on_behind_a_file_leads_nowhere(model: Path) -> None:
    beyond = model / "config.json" / "more"
    assert isinstance(refusal(beyond), ModelNotFound)
    with pytest.raises(ModelNotFound):
        locate(str(beyond))


UNPRIVILEGED = """
import os, sys
from pathlib import Path
from engine.chat.model_files import locate
from engine.errors import ModelFilesError
from engine.formats.checkpoint import open_checkpoint
whole, *closed = map(Path, sys.argv[1:])
open_checkpoint(whole)  # Python's own modules too may be closed to the other user
if os.geteuid() == 0:
    os.setegid(65534)
    os.seteuid(65534)
for path in closed:
    for look in (open_checkpoint, lambda path: open_checkpoint(locate(str(path)).path)):
        try:
            look(path)
        except ModelFilesError as error:
            print(error)
"""


@posix
def test_what_may_not_be_read_is_named() -> None:
    """As another user where the tests run as root, who may read everything."""
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        top.chmod(0o755)
        whole, shard, folder, config = (write_sharded(top / each) for each in "abcd")
        inner = write_sharded(top / "e" / "inner")
        asked = [shard, folder, config, inner]
        for closed in (shard / SHARD, folder, config / "config.json", inner.parent):
            closed.chmod(0)
        done = subprocess.run(
            [sys.executable, "-c", UNPRIVILEGED, *map(str, [whole, *asked])],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
        )
        for closed in (folder, inner.parent):
            closed.chmod(0o700)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2 * len(asked), lines
    for line, path in zip(lines, [p for p in asked for _ in range(2)], strict=True):
        assert re.match(f"{re.escape(str(path))}.* cannot be read: Permission denied", line), line
