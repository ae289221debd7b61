"""The environment that dev.py makes, without a network."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from installers import environment
from installers.system_libraries import Trouble
from tests.project.checkout import ROOT


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of its own, in a folder with a space and an umlaut, where nothing is installed."""
    root = tmp_path / "Zwei Wörter"
    (root / ".venv").mkdir(parents=True)
    (root / "pyproject.toml").write_text("[project]\n")
    (root / "locked.txt").write_text("# pins\ntorch==2.13.0\ntriton==3.7.1 ; sys_platform == 'x'\n")
    monkeypatch.setattr(environment, "ROOT", root)
    monkeypatch.setattr(environment, "VENV", root / ".venv")
    monkeypatch.setattr(environment, "LOCKED", root / "locked.txt")
    monkeypatch.setattr(environment, "RECORD", root / ".venv" / "record.json")
    monkeypatch.setattr(environment, "GUARD", root / ".venv" / "guard")
    monkeypatch.setattr(environment, "torch_flavour", lambda: "cpu")
    monkeypatch.setattr(environment, "compiling", contextlib.nullcontext)
    monkeypatch.setattr(environment, "build_native", lambda cmake: None)
    return root


@pytest.fixture
def steps(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The set-up's steps, noted instead of carried out."""
    done: list[str] = []

    def make_venv() -> None:
        done.append("venv")
        environment.venv_python().parent.mkdir(parents=True, exist_ok=True)
        environment.venv_python().touch()

    monkeypatch.setattr(environment, "make_venv", make_venv)
    monkeypatch.setattr(environment, "has_pip", lambda: True)
    monkeypatch.setattr(environment, "reachable", lambda url: False)
    monkeypatch.setattr(environment, "pip", lambda *a, index=None: done.append(f"pip {a[0]}"))
    monkeypatch.setattr(environment, "forget_older_metadata", lambda: None)
    monkeypatch.setattr(environment, "check_torch", lambda flavour: done.append("check"))
    return done


COMPILING = environment.compiling
INSTALL = ["pip torch==2.13.0", "pip --requirement", "pip --no-deps", "check"]


def test_a_second_set_up_does_nothing(steps: list[str]) -> None:
    environment.setup()
    assert steps == ["venv", *INSTALL]
    environment.setup()
    assert steps == ["venv", *INSTALL]


def test_an_environment_without_pip_is_made_again(
    steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment.make_venv()
    monkeypatch.setattr(environment, "has_pip", lambda: False)
    environment.setup()
    assert steps == ["venv", "venv", *INSTALL]


@pytest.mark.parametrize("has_cmake", [True, False])
def test_a_library_is_compiled_while_packages_are_installed(
    steps: list[str], monkeypatch: pytest.MonkeyPatch, has_cmake: bool
) -> None:
    @contextlib.contextmanager
    def running(command: list[str], folder: Path) -> Iterator[None]:
        steps.append(command[-1])
        yield
        steps.append("compiled")

    monkeypatch.setattr(environment, "compiling", COMPILING)
    monkeypatch.setattr(environment, "running_apart", running)
    found = "/usr/bin/cmake" if has_cmake else None
    monkeypatch.setattr(environment.shutil, "which", lambda name: found)
    monkeypatch.setattr(environment, "build_native", lambda cmake: steps.append("looked at"))
    environment.setup()
    beside = (
        ["installers.native", "venv", *INSTALL, "compiled"] if has_cmake else ["venv", *INSTALL]
    )
    assert steps == [*beside, "looked at"]


def test_only_a_set_up_by_name_forgets_a_failed_compilation(
    steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "forget_failure", lambda: steps.append("forgotten"))
    environment.setup()
    assert "forgotten" not in steps
    environment.setup(again=True)
    assert steps[-1] == "forgotten"


def test_new_pins_are_installed_into_the_same_environment(steps: list[str], checkout: Path) -> None:
    environment.setup()
    (checkout / "locked.txt").write_text("torch==2.13.1\n")
    environment.setup()
    assert steps == ["venv", *INSTALL, "pip torch==2.13.1", *INSTALL[1:]]


def test_an_interrupted_install_begins_anew(
    steps: list[str], checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, index: str | None = None) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(environment, "pip", interrupted)
        with pytest.raises(KeyboardInterrupt):
            environment.setup()
    half = checkout / ".venv" / "half-a-package"
    half.mkdir()
    environment.setup()
    assert steps == ["venv", "venv", *INSTALL]
    assert not half.exists()


def test_what_pip_refused_is_gone_on_with(
    steps: list[str], checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, index: str | None = None) -> NoReturn:
        raise Trouble("no network")

    with monkeypatch.context() as context:
        context.setattr(environment, "pip", refused)
        with pytest.raises(Trouble, match="no network"):
            environment.setup()
    environment.setup()
    assert steps == ["venv", *INSTALL]


@pytest.mark.parametrize("fact", ["python", "root", "torch"])
def test_an_environment_of_another_python_place_or_device_is_replaced(
    steps: list[str], fact: str
) -> None:
    environment.setup()
    record = json.loads(environment.RECORD.read_text())
    environment.RECORD.write_text(json.dumps(record | {fact: "another", "stamp": "another"}))
    environment.setup()
    assert steps == ["venv", *INSTALL, "venv", *INSTALL]


def test_an_environment_made_by_hand_is_not_emptied(steps: list[str], checkout: Path) -> None:
    own = checkout / ".venv" / "own"
    own.touch()
    environment.setup()
    assert own.exists()


def test_a_read_only_folder_is_named(
    steps: list[str], checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise PermissionError(13, "Permission denied", str(checkout / ".venv" / "x"))

    monkeypatch.setattr(environment, "write_record", refuse)
    with pytest.raises(Trouble, match=r"may not write to .*\.venv"):
        environment.setup()


@pytest.mark.skipif(os.name == "nt", reason="a shell script stands for Python")
def test_a_pip_that_was_killed_leaves_the_record_at_installing(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_venv() -> None:
        environment.venv_python().parent.mkdir(parents=True)
        environment.venv_python().write_text("#!/bin/sh\nkill -9 $$\n")
        environment.venv_python().chmod(0o755)

    monkeypatch.setattr(environment, "make_venv", make_venv)
    monkeypatch.setattr(environment, "reachable", lambda url: False)
    with pytest.raises(Trouble, match="signal 9"):
        environment.setup()
    assert environment.read_record()["state"] == "installing"


def test_two_set_ups_at_once_install_once(steps: list[str], checkout: Path) -> None:
    """The second waits for the lock and then finds the work done."""
    with environment.only_one_setup():
        code = (
            "from pathlib import Path; from installers import environment as e; import sys;"
            "e.GUARD = Path(sys.argv[1])\nwith e.only_one_setup(): print('in')"
        )
        other = subprocess.Popen(
            [sys.executable, "-c", code, str(environment.GUARD)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        assert other.stdout is not None
        assert "waiting" in other.stdout.readline()
        assert other.poll() is None
    assert other.communicate(timeout=30)[0] == "in\n"


def test_torch_comes_from_the_index_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    for platform, flavour, ending in [
        ("linux", "cpu", "/whl/cpu"),
        ("linux", "cuda", "/whl/cu130"),
        ("win32", "cuda", "/whl/cu130"),
    ]:
        monkeypatch.setattr(sys, "platform", platform)
        index = environment.torch_index(flavour)
        assert index is not None
        assert index.endswith(ending)
    for platform in ("win32", "darwin"):
        monkeypatch.setattr(sys, "platform", platform)
        assert environment.torch_index("cpu") is None


def test_an_index_that_does_not_answer_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert not environment.reachable(f"http://127.0.0.1:{port}/torch/", seconds=0.3)


def test_a_folder_with_an_umlaut_is_found_in_any_locale(checkout: Path) -> None:
    """With the venv module's own site, where .pth files are read."""
    site = checkout / ".venv" / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    links = site / "_editable_skbc_headrace.pth"
    links.write_text(f"import json\n{checkout}\n{checkout}\n", encoding="utf-8")
    environment.spell_paths_in_ascii()
    assert links.read_bytes().isascii()
    assert links.read_text().startswith("import json\n")
    program = "import site, sys; site.addsitedir(sys.argv[1]); print(ascii(sys.path[-1]))"
    plain = {"LC_ALL": "C", "PATH": os.environ["PATH"], "PYTHONUTF8": "0"}
    if os.name == "nt":
        plain |= {"SYSTEMROOT": os.environ["SYSTEMROOT"]}
    done = subprocess.run(
        # Without this machine's own site-packages, whose .pth files are not under test.
        [sys.executable, "-S", "-c", program, str(site)],
        env=plain,
        capture_output=True,
        text=True,
    )
    assert (done.stdout.strip(), done.stderr) == (ascii(str(checkout)), "")
