"""The wheel holds what a program installed from it needs, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import engine
from tests.project.checkout import ROOT, modules, tracked_files


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", out]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (built,) = out.glob("*.whl")
    return built


def test_it_holds_both_packages_and_the_resources(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {path.relative_to(ROOT).as_posix() for path in modules("app", "engine").values()}
    tracked = {path.relative_to(ROOT).as_posix() for path in tracked_files()}
    shipped = ("resources/icons/", "resources/models/demo/")
    resources = {f"engine/{name}" for name in tracked if name.startswith(shipped)}
    assert resources
    assert sources | resources <= names
    about = f"headrace-{engine.__version__}.dist-info/"
    assert [name for name in names if not name.startswith(("app/", "engine/", about))] == []
    assert [name for name in names if "training" in name] == []


def test_the_unpacked_program_finds_its_resources_from_anywhere(
    wheel: Path, tmp_path: Path
) -> None:
    place = tmp_path / "Zwei Wörter"
    zipfile.ZipFile(wheel).extractall(place)
    code = "from engine import paths; print(paths.demo_model()); print(paths.program())"
    outcome = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(place), "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    demo, program = outcome.stdout.splitlines()
    assert Path(program) == place
    assert (Path(demo) / "config.json").is_file()
