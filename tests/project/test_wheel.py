"""Wheel and source archive hold what they are for, with and without a compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import engine
from engine.native.library import SUFFIX
from installers.native import compiler_name
from tests.project.checkout import ROOT, modules, tracked_files

BUILD = """
import sys
import scikit_build_core.build as backend
build, out, *settings = sys.argv[1:]
getattr(backend, "build_" + build)(out, dict(one.split("=") for one in settings))
"""
LIBRARY = f"engine/native/headrace_native{SUFFIX}"
ABOUT = f"headrace-{engine.__version__}.dist-info/"


def build(what: str, out: Path, *settings: str, **environment: str) -> tuple[Path, str]:
    """The one file that the backend makes, and what it says."""
    outcome = subprocess.run(
        [sys.executable, "-c", BUILD, what, str(out), *settings],
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stdout
    (built,) = out.iterdir()
    return built, outcome.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As it is built where nothing compiles."""
    built, _ = build("wheel", tmp_path_factory.mktemp("wheel"), "wheel.cmake=false")
    return built


def names_in(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")}


def test_it_holds_both_packages_and_the_resources(wheel: Path) -> None:
    names = names_in(wheel)
    sources = {path.relative_to(ROOT).as_posix() for path in modules("app", "engine").values()}
    tracked = {path.relative_to(ROOT).as_posix() for path in tracked_files()}
    shipped = ("resources/catalog/", "resources/icons/", "resources/models/demo/")
    resources = {f"engine/{name}" for name in tracked if name.startswith(shipped)}
    assert resources
    beside = {name for name in names if not name.startswith(ABOUT)}
    assert sources | resources <= beside
    assert beside - sources - resources == {n for n in tracked if n.endswith("/py.typed")}
    assert {f"{ABOUT}{name}" for name in ("METADATA", "entry_points.txt")} <= names


def test_the_app_s_requirements_have_no_torch(wheel: Path) -> None:
    text = zipfile.ZipFile(wheel).read(f"{ABOUT}METADATA").decode()
    wanted = [line for line in text.splitlines() if line.startswith("Requires-Dist: ")]
    torch = [line for line in wanted if line.startswith("Requires-Dist: torch")]
    assert len(torch) == 1 and "extra == 'engine'" in torch[0].replace('"', "'")
    assert f"Version: {engine.__version__}\n" in text


def test_the_unpacked_program_finds_its_resources_from_anywhere(
    wheel: Path, tmp_path: Path
) -> None:
    place = tmp_path / "Zwei Wörter"
    zipfile.ZipFile(wheel).extractall(place)
    code = "from engine import paths; print(paths.demo_model()); print(paths.program())"
    # Without site-packages, where a checkout's own install would come first.
    demo, program = run_from(place, "-S", "-c", code).stdout.splitlines()
    assert Path(program) == place
    assert (Path(demo) / "config.json").is_file()


def run_from(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=place.parent,
        env=os.environ | {"PYTHONPATH": str(place), "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )


@pytest.mark.skipif(shutil.which("cmake") is None, reason="pip would fetch CMake first")
@pytest.mark.skipif(os.name == "nt", reason="CMake looks for Visual Studio by itself")
def test_without_a_compiler_it_is_for_every_machine_and_says_so(tmp_path: Path) -> None:
    built, said = build("wheel", tmp_path, CXX=shutil.which("false") or "/bin/false")
    assert built.name.endswith("-py3-none-any.whl")
    assert LIBRARY not in names_in(built)
    assert said.count("this wheel runs without them") == 1
    assert "sudo apt-get install g++" in said


def test_an_editable_install_compiles_nothing_and_points_here(tmp_path: Path) -> None:
    built, _ = build("editable", tmp_path)
    assert not [name for name in names_in(built) if name.startswith(("app/", "engine/"))]
    (links,) = [name for name in names_in(built) if name.endswith(".pth")]
    # installers/environment.py looks for this name.
    assert links == "_editable_skbc_headrace.pth"
    lines = zipfile.ZipFile(built).read(links).decode().splitlines()
    assert {line for line in lines if not line.startswith("import ")} == {str(ROOT)}


def test_the_source_archive_holds_the_whole_project(tmp_path: Path) -> None:
    built, _ = build("sdist", tmp_path)
    with tarfile.open(built) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers()}
    tracked = {path.relative_to(ROOT).as_posix() for path in tracked_files()}
    assert tracked - names == set()
    strange = [name for name in names if name.startswith((".venv", "shared", ".git/"))]
    assert [*strange, *(name for name in names if "_build/" in name)] == []


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not compiler_name(), reason="needs a C++ compiler")
@pytest.mark.skipif(shutil.which("cmake") is None, reason="pip would fetch CMake first")
def test_from_an_archive_to_an_answer_with_compiled_kernels(tmp_path: Path) -> None:
    archive, _ = build("sdist", tmp_path / "archive")
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    out = tmp_path / "wheel"
    subprocess.run([*pip, "--wheel-dir", out, archive], check=True, capture_output=True)
    (built,) = out.iterdir()
    assert "-py3-none-" in built.name and not built.name.endswith("-any.whl")
    assert LIBRARY in names_in(built)
    place = tmp_path / "program"
    zipfile.ZipFile(built).extractall(place)
    question = ["--model", "demo", "--prompt", "What is the capital of France?"]
    question += ["--temperature", "0", "--max-tokens", "12", "--log-level", "info"]
    outcome = run_from(place, "-m", "app.cli", "chat", *question)
    assert "Paris" in outcome.stdout
    assert "CPU kernels: " in outcome.stderr
