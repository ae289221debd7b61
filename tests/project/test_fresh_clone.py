"""What the README promises of a fresh clone, in a folder with a space and an umlaut.

Installs packages, once for all of this file, so it is `full`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.project.checkout import ROOT
from tests.project.serving import end_with_everything, printed, serving

if sys.platform == "win32":
    pytest.skip("signals and users are those of POSIX", allow_module_level=True)

import pwd
import resource

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]

_SAYS_ITS_VERSION = "import ensurepip, sys; print(*sys.version_info[:2])"


@dataclass(frozen=True)
class Clone:
    folder: Path
    python: str
    said: str
    """By the set-up that came after an interrupted one."""
    ordinary: dict[str, Any]
    """Popen's arguments for a user who is not root; empty where there is none to become."""

    def environment(self, home: Path | None = None) -> dict[str, str]:
        """That of a terminal without a display, and without what the tests themselves set."""
        own = ("VIRTUAL_ENV", "HEADRACE_HOME", "OMP_NUM_THREADS", "HF_HUB_OFFLINE")
        screen = ("QT_QPA_PLATFORM", "DISPLAY", "WAYLAND_DISPLAY")
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in (*own, *screen) and not name.startswith(("PYTEST_", "XDG_"))
        }
        return kept | ({"HOME": str(home)} if home else {})

    def dev(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.python, "dev.py", *arguments],
            cwd=self.folder,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )


def ordinary_user() -> dict[str, Any]:
    if os.geteuid():
        return {}  # the tests' own user is one
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        return {}
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def python_for(ordinary: dict[str, Any]) -> str | None:
    """A Python outside environments that dev.py takes and this user may start."""
    places = [Path(folder) for folder in os.get_exec_path()]
    names = ["python3", *(f"python3.{minor}" for minor in range(11, 15))]
    own = getattr(sys, "_base_executable", sys.executable)
    for program in [own, *(str(place / name) for place in places for name in names)]:
        try:
            found = subprocess.run(
                [program, "-I", "-c", _SAYS_ITS_VERSION],
                cwd="/",
                capture_output=True,
                text=True,
                check=True,
                **ordinary,
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        major, minor = map(int, found.stdout.split())
        if (3, 11) <= (major, minor) <= (3, 14):
            return program
    return None


@pytest.fixture(scope="module")
def clone() -> Iterator[Clone]:
    """Set up by a second start, after the first was killed in the middle of its work."""
    ordinary = ordinary_user()
    python = python_for(ordinary)
    if python is None:
        ordinary, python = {}, python_for({})
    assert python is not None
    # Not pytest's own folder, which no other user may enter.
    with tempfile.TemporaryDirectory(prefix="headrace-clone-") as name:
        Path(name).chmod(0o755)
        folder = Path(name, "Zwei Wörter", "headrace")
        git = ["git", "-c", "safe.directory=*", "clone", "--quiet", str(ROOT), str(folder)]
        subprocess.run(git, check=True)
        bare = Clone(folder, python, "", ordinary)
        kill_a_set_up(bare)
        again = bare.dev("setup")
        assert again.returncode == 0, again.stdout
        yield Clone(folder, python, again.stdout, ordinary)


def kill_a_set_up(clone: Clone) -> None:
    """While pip is at work."""
    first = subprocess.Popen(
        [clone.python, "dev.py", "setup"],
        cwd=clone.folder,
        env=clone.environment(),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert first.stdout is not None
    for line in first.stdout:
        if line.startswith("Installing PyTorch"):
            break
    time.sleep(5)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()


def test_an_interrupted_set_up_is_mended(clone: Clone) -> None:
    assert "making it anew" in clone.said
    assert "Set-up complete" in clone.said


def test_a_further_start_sets_nothing_up(clone: Clone, tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    third = clone.dev("setup")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (third.returncode, third.stdout) == (0, "")
    # Seconds of work, which a machine that is busy with others does not change.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 3
    program = clone.folder / ".venv" / "bin" / "headrace"
    version = subprocess.run([program, "--version"], capture_output=True, text=True, cwd=tmp_path)
    assert version.stdout.startswith("headrace ")


@pytest.mark.parametrize("who", ["this user", "an ordinary user"])
def test_run_answers_and_ends_with_everything_it_started(clone: Clone, who: str) -> None:
    """The README's first command, without a display, up to Ctrl-C."""
    identity = clone.ordinary if who == "an ordinary user" else {}
    if who == "an ordinary user" and not identity:
        pytest.skip("the tests' user is none but an ordinary one, or may not become one here")
    home = clone.folder.parent / who
    home.mkdir()
    if identity:
        for path in (home, clone.folder, *clone.folder.rglob("*")):
            os.chown(path, identity["user"], identity["group"], follow_symlinks=False)
    command = [clone.python, "dev.py", "run"]
    with serving(command, clone.folder, clone.environment(home), **identity) as program:
        text, answer = printed(program)
        assert "Serving without a window." in text
        assert "Paris" in answer, text
        end_with_everything(program, signal.SIGINT)
    records = list(home.rglob("servers/*.json"))
    assert records == []


def test_lint_types_and_a_selection_of_tests_pass(clone: Clone) -> None:
    """The README's second command; the whole suite is what runs this test."""
    done = clone.dev("test", "tests/memory", "tests/project/test_tree.py")
    assert done.returncode == 0, done.stdout
    assert "Lint, types and tests are in order." in done.stdout
