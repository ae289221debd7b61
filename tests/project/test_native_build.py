"""When the set-up compiles the native library, and what it says when it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from installers import environment, native
from tests.project.checkout import ROOT


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library of one file whose compilation makes an empty file."""
    folder = tmp_path / "Zwei Wörter"
    (folder / "source").mkdir(parents=True)
    (folder / "CMakeLists.txt").write_text("project(x)\n")
    (folder / "source" / "a.cpp").write_text("int a;\n")

    def compile_with(cmake: str) -> str:
        native.BUILD.mkdir(exist_ok=True)
        (native.BUILD / native.NAME).touch()
        return ""

    monkeypatch.setattr(native, "SOURCE", folder)
    monkeypatch.setattr(native, "BUILD", folder / "_build")
    monkeypatch.setattr(native, "compiler_name", lambda: "c++ 12")
    monkeypatch.setattr(native, "compile_with", compile_with)
    return folder


def unwanted() -> NoReturn:
    raise AssertionError("CMake is not needed")


def test_it_is_compiled_once_and_again_when_a_source_changes(
    sources: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    native.build_native(lambda: "cmake")
    assert "compiled" in capsys.readouterr().out
    native.build_native(unwanted)
    assert capsys.readouterr().out == ""
    (sources / "source" / "a.cpp").write_text("int b;\n")
    native.build_native(lambda: "cmake")
    assert "compiled" in capsys.readouterr().out
    (native.BUILD / native.NAME).unlink()
    native.build_native(lambda: "cmake")
    assert (native.BUILD / native.NAME).exists()


def test_what_a_killed_compilation_left_is_thrown_away(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(cmake: str) -> NoReturn:
        (native.BUILD / "a.o").write_text("half an ob")
        raise KeyboardInterrupt

    native.build_native(lambda: "cmake")
    (sources / "source" / "a.cpp").write_text("int b;\n")
    with monkeypatch.context() as context:
        context.setattr(native, "compile_with", killed)
        with pytest.raises(KeyboardInterrupt):
            native.build_native(lambda: "cmake")
    native.build_native(lambda: "cmake")
    assert (native.BUILD / native.NAME).exists()
    assert not (native.BUILD / "a.o").exists()


def test_a_missing_compiler_is_named_once_and_found_later(
    sources: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as context:
        context.setattr(native, "compiler_name", lambda: "")
        native.build_native(unwanted)
        assert "no C++ compiler" in capsys.readouterr().out
        native.build_native(unwanted)
        assert capsys.readouterr().out == ""
    native.build_native(lambda: "cmake")
    assert (native.BUILD / native.NAME).exists()


def test_a_failure_is_told_and_not_repeated_for_the_same_sources(
    sources: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(native, "compile_with", lambda cmake: "a.cpp:1: error")
    native.build_native(lambda: "cmake")
    told = capsys.readouterr().out
    assert "a.cpp:1: error" in told
    assert "PyTorch's operations" in told
    native.build_native(unwanted)
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(native, "compiler_name", lambda: "c++ 13")
    native.build_native(lambda: "cmake")
    assert "a.cpp:1: error" in capsys.readouterr().out


@pytest.mark.parametrize("damage", [b"", b"junk", b"the librarx"], ids=["cut", "junk", "bit"])
def test_a_damaged_library_is_seen_and_made_anew(
    sources: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    damage: bytes,
) -> None:
    library = native.BUILD / native.NAME

    def compile_with(cmake: str) -> str:
        library.write_bytes(b"the library")
        return ""

    monkeypatch.setattr(native, "compile_with", compile_with)
    native.build_native(lambda: "cmake")
    library.write_bytes(damage)
    capsys.readouterr()
    native.build_native(lambda: "cmake")
    assert "not as it was compiled" in capsys.readouterr().out
    assert library.read_bytes() == b"the library"
    library.write_bytes(damage)
    monkeypatch.setattr(native, "compiler_name", lambda: "")
    native.build_native(unwanted)
    assert not library.exists()


def test_what_failed_is_tried_again_where_that_is_asked_for(
    sources: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as context:
        context.setattr(native, "compile_with", lambda cmake: "no space left")
        native.build_native(lambda: "cmake")
        assert "python3 dev.py setup" in capsys.readouterr().out
    native.build_native(unwanted)
    native.forget_failure()
    assert "trying again" in capsys.readouterr().out
    native.build_native(lambda: "cmake")
    assert (native.BUILD / native.NAME).exists()
    capsys.readouterr()
    native.forget_failure()
    native.build_native(unwanted)
    assert capsys.readouterr().out == ""


SECOND = """
import sys
from pathlib import Path
from installers import native
native.SOURCE = Path(sys.argv[1])
native.BUILD = native.SOURCE / "_build"
native.compiler_name = lambda: "c++ 12"
native.compile_with = lambda cmake: sys.exit("compiled twice")
native.build_native(lambda: "cmake")
"""


def test_two_set_ups_at_once_compile_once(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits for the lock and then finds the work done."""
    others = []

    def compile_with(cmake: str) -> str:
        half = native.BUILD / "half.o"
        half.touch()
        other = subprocess.Popen(
            [sys.executable, "-c", SECOND, str(sources)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
        )
        others.append(other)
        assert other.stdout is not None
        assert "waiting" in other.stdout.readline()
        assert half.exists()
        (native.BUILD / native.NAME).touch()
        return ""

    monkeypatch.setattr(native, "compile_with", compile_with)
    native.build_native(lambda: "cmake")
    assert (others[0].communicate(timeout=30)[0], others[0].returncode) == ("", 0)
    assert native.is_settled(native.read_record())


@pytest.mark.skipif(os.name == "nt", reason="a shell script stands for CMake")
def test_no_half_library_is_ever_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "BUILD", tmp_path / "_build")
    native.BUILD.mkdir()
    place = native.BUILD / native.NAME
    place.write_text("former")
    cmake = tmp_path / "cmake"
    link = f'mkdir -p "$4"; printf half > "$4/{native.NAME}"'
    cmake.write_text(f'#!/bin/sh\n[ "$1" = -S ] || exit 1\n{link}\n')
    cmake.chmod(0o755)
    assert native.compile_with(str(cmake)) != ""
    assert place.read_text() == "former"
    cmake.write_text(f'#!/bin/sh\n[ "$1" = -S ] || exit 0\n{link}\n')
    with place.open() as loaded:
        assert native.compile_with(str(cmake)) == ""
        assert (loaded.read(), place.read_text()) == ("former", "half")


@pytest.mark.skipif(os.name == "nt", reason="a shell script stands for CMake")
def test_the_end_of_cmake_s_own_words_is_what_went_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "BUILD", tmp_path / "_build")
    cmake = tmp_path / "cmake"
    cmake.write_text('#!/bin/sh\necho "no such compiler" >&2\nexit 1\n')
    cmake.chmod(0o755)
    assert native.compile_with(str(cmake)) == "no such compiler"
    cmake.write_text("#!/bin/sh\nexit 0\n")
    assert native.NAME in native.compile_with(str(cmake))
    assert native.compile_with(str(tmp_path / "absent")) != ""


def test_the_loader_looks_where_the_set_up_builds() -> None:
    text = (ROOT / "engine" / "native" / "library.py").read_text(encoding="utf-8")
    assert '"_build"' in text
    assert native.BUILD == ROOT / "engine" / "native" / "_build"
    assert '"record.json"' in text


def test_where_the_system_has_no_cmake_the_pinned_one_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(environment, "VENV", tmp_path)
    asked: list[str] = []
    monkeypatch.setattr(environment, "pip", lambda *arguments: asked.extend(arguments))
    own = environment.cmake()
    assert Path(own).parent == environment.venv_python().parent
    assert asked == ["--requirement", str(environment.BUILD_TOOLS)]
    Path(own).parent.mkdir(parents=True)
    Path(own).touch()
    assert environment.cmake() == own
    assert len(asked) == 2
