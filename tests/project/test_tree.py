"""The tree stays tidy: what lies at the top, how large files are, that the map tells the truth."""

from __future__ import annotations

import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import engine
from app.core import startup
from tests.project.checkout import ROOT, files_not_ignored, modules, tracked_files

TOP = {
    *("app", "engine", "resources", "installers", "benchmarks", "tests", "docs", ".ci"),
    *("dev.py", "pyproject.toml", "briefcase.toml", ".gitignore", ".gitattributes"),
    *("README.md", "LICENSE", "CONTRIBUTING.md", "CHANGELOG.md"),
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted((ROOT / "docs").glob("*.md"))


def test_the_top_level_holds_exactly_what_belongs_there() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in tracked_files()} == TOP


def test_the_repository_stays_small() -> None:
    sizes = {path: path.stat().st_size for path in tracked_files()}
    assert sum(sizes.values()) < 36e6
    assert [str(path) for path, size in sizes.items() if size > 15e6] == []


def test_no_source_file_is_overlong() -> None:
    sources = [*modules("app", "engine", "installers").values(), ROOT / "dev.py"]
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in sources}
    assert {str(path.relative_to(ROOT)): n for path, n in lengths.items() if n > 450} == {}


def mapped_paths() -> set[str]:
    """Paths in the package map: the first fenced block of docs/architecture.md, one a line."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    block = re.search(r"```\n(.*?)```", text, re.DOTALL)
    assert block, "docs/architecture.md has no package map"
    found, above = set(), []
    for line in block[1].splitlines():
        if not line.strip():
            continue
        depth = (len(line) - len(line.lstrip())) // 2
        above = [*above[:depth], line.split()[0].rstrip("/")]
        found.add("/".join(above))
    return found


def test_the_package_map_is_complete_and_true() -> None:
    packages = {
        path.parent.relative_to(ROOT).as_posix()
        for path in modules("app", "engine").values()
        if path.name == "__init__.py"
    }
    beside = {path.relative_to(ROOT).as_posix() for path in (ROOT / "engine").glob("*.py")}
    beside |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "app").glob("*.py")}
    beside = {path for path in beside if not path.endswith("__init__.py")}
    mapped = mapped_paths()
    assert packages | beside | TOP - {".gitignore", ".gitattributes"} <= mapped
    assert [path for path in mapped if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    local = [target.split("#")[0] for target in targets if "://" not in target]
    assert [target for target in local if target and not (page.parent / target).exists()] == []


def test_the_app_s_own_installer_file_agrees_with_the_project() -> None:
    briefcase = tomllib.loads((ROOT / "briefcase.toml").read_text(encoding="utf-8"))
    app = briefcase["app"]["headrace"]
    assert briefcase["version"] == engine.__version__
    assert sorted(app["requires"]) == sorted(PROJECT["dependencies"])
    assert [source for source in app["sources"] if not (ROOT / source).is_dir()] == []


def test_the_debian_package_asks_for_every_library_that_qt_loads() -> None:
    briefcase = tomllib.loads((ROOT / "briefcase.toml").read_text(encoding="utf-8"))
    asked = briefcase["app"]["headrace"]["linux"]["system"]["debian"]["system_runtime_requires"]

    def nothing_loads(library: str) -> None:
        raise OSError(library)

    needed = [startup.missing_libraries(name, nothing_loads) for name in ("xcb", "wayland")]
    assert sorted(asked) == sorted({package for group in needed for package in group.values()})


def test_without_git_the_files_are_those_that_it_does_not_ignore(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_bytes((ROOT / ".gitignore").read_bytes())
    ours = ["dev.py", "engine/native/source/a.h", "app/build.py", "engine/native/build.txt"]
    others = [".venv/bin/x", "engine/native/_build/x.so", "app/__pycache__/x.py", "x/dist/x"]
    for name in (*ours, *others):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    listing = ["git", "ls-files", "--others", "--exclude-per-directory=.gitignore"]
    said = subprocess.run(listing, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert set(said.splitlines()) == {".gitignore", *ours}
    found = {path.relative_to(tmp_path).as_posix() for path in files_not_ignored(tmp_path)}
    assert found == {".gitignore", *ours}


def test_property_tests_try_more_in_a_full_run() -> None:
    """A number of examples that stands alone would override the profile of a full run."""
    alone = re.compile(r"\bsettings\([^()]*max_examples=\d")
    tests = [path for path in tracked_files() if path.name.startswith("test_")]
    assert tests
    assert [path.name for path in tests if alone.search(path.read_text(encoding="utf-8"))] == []


REQUIREMENTS = ROOT / "installers" / "requirements"


def locked(*names: str) -> dict[str, Requirement]:
    texts = [(REQUIREMENTS / name).read_text(encoding="utf-8") for name in names or ["locked.txt"]]
    lines = [line for line in "".join(texts).splitlines() if line and not line.startswith("#")]
    pins = [Requirement(line) for line in lines]
    return {canonicalize_name(pin.name): pin for pin in pins}


def test_every_pin_lies_in_the_project_s_range() -> None:
    pins = locked()
    extras = PROJECT["optional-dependencies"].values()
    for line in [*PROJECT["dependencies"], *(line for extra in extras for line in extra)]:
        wanted = Requirement(line)
        (clause,) = pins[canonicalize_name(wanted.name)].specifier
        assert wanted.specifier.contains(clause.version), line


def test_whatever_is_installed_is_pinned_in_the_lists() -> None:
    """No version stands in the code, and each list is read by it."""
    sources = [*modules("installers").values(), ROOT / "dev.py"]
    texts = {path: path.read_text(encoding="utf-8") for path in sources}
    assert [path.name for path, text in texts.items() if re.search(r"\w==\d", text)] == []
    lists = sorted(REQUIREMENTS.iterdir())
    for path in lists:
        assert any(f'"{path.name}"' in text for text in texts.values()), path
    pins = locked(*(path.name for path in lists))
    assert {"cmake", "torch"} <= set(pins)
    for name, pin in pins.items():
        assert [clause.operator for clause in pin.specifier] == ["=="], name


def test_the_lock_has_everything_that_is_pulled_in() -> None:
    """Whatever an installed locked package needs on this machine is locked too."""
    pins = locked()
    installed = [canonicalize_name(found.name) for found in metadata.distributions()]
    open_ends: set[str] = set()
    for name in set(pins) & set(installed):
        for line in metadata.requires(name) or []:
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                open_ends.add(canonicalize_name(needed.name))
    # A CUDA build of torch pins its own libraries; the lock is for every build.
    cuda = {name for name in open_ends if name.startswith(("nvidia-", "cuda-"))}
    assert open_ends - cuda - set(pins) == set()
