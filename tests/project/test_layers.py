"""Imports only point down, and the heavy libraries stay where they belong."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.project.checkout import ROOT, imports, modules

# Height of each layer; a module imports its own package and what is strictly lower. Packages of
# one height do not know each other. The longest matching name counts.
HEIGHT = {
    "app.cli": 130,
    "app.ui": 120,
    "app.core": 110,
    "app": 100,
    "engine.cli": 90,
    "engine.server": 80,
    "engine.runtime": 80,
    "engine.chat": 70,
    "engine.scheduler": 70,
    "engine.models": 60,
    "engine.layers": 50,
    "engine.experts": 40,
    "engine.context": 40,
    "engine.kernels": 30,
    "engine.memory": 20,
    "engine.native": 20,
    "engine.formats": 10,
    # plain records that every layer shares
    "engine.models.spec": 3,
    "engine.messages": 2,
    "engine.api_keys": 1,
    "engine.options": 1,
    "engine.child_process": 0,
    "engine.windows_job": 0,
    "engine.errors": 0,
    "engine.schemas": 0,
    "engine.paths": 0,
    "engine.private_files": 0,
    "engine.processes": 0,
    "engine": 0,
}
# Without torch: what the app and the server load.
TORCH_FREE = (
    "app",
    "engine.cli",
    "engine.server",
    "engine.chat",
    "engine.api_keys",
    "engine.private_files",
    "engine.messages",
    "engine.options",
    "engine.child_process",
    "engine.windows_job",
    "engine.errors",
    "engine.paths",
    "engine.processes",
    "engine.schemas",
    "engine.models.spec",
    "engine.models.families",
    "engine.models.facts",
    "engine.memory.budget",
    "engine.memory.fit",
    "engine.memory.machine_profile",
    "engine.memory.solver",
    "engine.formats.blob",
    "engine.formats.model_files",
    "engine.native",
)
QT_FREE = ("app.cli", "app.core", "engine")
MODULES = modules("app", "engine")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DEPENDENCIES, EXTRAS = PROJECT["dependencies"], PROJECT["optional-dependencies"]

BLOCK = """
import importlib, importlib.abc, os, sys
blocked, names = sys.argv[1].split(","), sys.argv[2].split(",")
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in blocked:
            raise ImportError(name + " must not be imported here")
sys.meta_path.insert(0, Block())
wrong = []
for name in names:
    try:
        importlib.import_module(name)
    except ImportError as error:
        wrong.append(name + ": " + str(error))
print("\\n".join(wrong))
sys.exit(bool(wrong))
"""


def home_of(module: str) -> str:
    """The longest name in HEIGHT that this module is or lies in."""
    parts = module.split(".")
    names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next(name for name in names if name in HEIGHT)


def test_every_package_has_a_height() -> None:
    packages = {name for name, path in MODULES.items() if path.name == "__init__.py"}
    top = {name for name in packages if name.count(".") == 1}
    assert top <= set(HEIGHT)
    assert {name for name in HEIGHT if name not in MODULES} == set(), "heights of what is gone"


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module: str) -> None:
    home = home_of(module)
    upward = []
    for line, imported in imports(MODULES[module], set(MODULES)):
        if imported.split(".")[0] not in ("app", "engine"):
            continue
        other = home_of(imported)
        if other != home and HEIGHT[other] >= HEIGHT[home]:
            upward.append(f"line {line} imports {imported}")
    assert upward == []


def test_the_server_does_not_import_the_runtime_it_starts() -> None:
    for name, path in MODULES.items():
        if name.startswith("engine.server"):
            inside = [found for _, found in imports(path, set(MODULES)) if "runtime" in found]
            assert [found for found in inside if found.startswith("engine.runtime")] == [], name


@cache
def provided() -> Mapping[str, list[str]]:
    """The distributions that each importable name comes from."""
    return metadata.packages_distributions()


@pytest.mark.parametrize(
    ("package", "extras"), [("app", ()), ("engine", ("engine",)), ("tests", ("engine", "dev"))]
)
def test_every_library_that_is_imported_is_declared(package: str, extras: tuple[str, ...]) -> None:
    declared = {"headrace"}
    for line in [*DEPENDENCIES, *(line for extra in extras for line in EXTRAS[extra])]:
        declared.add(canonicalize_name(Requirement(line).name))
    provided_by = provided()
    own = {"app", "engine", "tests", "installers", "dev"} | sys.stdlib_module_names
    undeclared = set()
    for name, path in modules(package).items():
        for _, imported in imports(path, set()):
            root = imported.split(".")[0]
            distributions = map(canonicalize_name, provided_by.get(root, [root]))
            optional = (name, root) == ("engine.runtime.bench_twin", "transformers")
            if root not in own and not optional and not declared & set(distributions):
                undeclared.add(f"{name} imports {root}")
    assert undeclared == set()


def within(names: tuple[str, ...]) -> list[str]:
    return [
        module
        for module in MODULES
        if any(module == name or module.startswith(name + ".") for name in names)
        and not module.endswith("__main__")
    ]


def import_all_without(libraries: str, names: list[str]) -> None:
    outcome = subprocess.run(
        [sys.executable, "-c", BLOCK, libraries, ",".join(names)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def test_app_and_server_load_without_torch() -> None:
    import_all_without("torch,triton,transformers", within(TORCH_FREE))


def test_engine_and_core_load_without_qt() -> None:
    import_all_without("PySide6,shiboken6,transformers", within(QT_FREE))


def test_the_app_loads_with_its_own_dependencies_only() -> None:
    """The installed app has no engine environment: neither torch nor the server's libraries."""
    heavy = "torch,triton,transformers,numpy,starlette,jinja2,uvicorn,safetensors,tokenizers"
    import_all_without(heavy, within(("app",)))
