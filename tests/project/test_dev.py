"""dev.py: its verbs, its steps and its words."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

import dev
from app.core import startup
from installers import system_libraries
from installers.system_libraries import Trouble
from tests.project.checkout import ROOT


def test_missing_libraries_are_named_with_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(startup, "missing_libraries", lambda platform: {"libEGL.so.1": "libegl1"})
    monkeypatch.setattr(system_libraries.shutil, "which", lambda name: None)
    with pytest.raises(Trouble, match=r"lacks libEGL\.so\.1\. .* apt-get install libegl1$"):
        system_libraries.ensure_libraries("offscreen")


@pytest.mark.skipif(sys.platform != "linux", reason="the libraries are those of Linux")
def test_an_installed_qt_finds_every_library_that_is_listed_here() -> None:
    """The list is true both ways: Qt loads, and nothing that it loads is said to be missing."""
    assert startup.missing_libraries("offscreen") == {}


@pytest.mark.parametrize("verb", sorted({"run", "test", "setup"}))
def test_every_verb_explains_itself(verb: str) -> None:
    outcome = subprocess.run(
        [sys.executable, "dev.py", verb, "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 0
    assert f"dev.py {verb}" in outcome.stdout


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_the_pages_name_verbs_that_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"python3 dev\.py (\w+)", text))
    assert {"run", "test"} <= named <= {"run", "test", "setup"}


def test_an_unknown_argument_of_setup_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        dev.main(["setup", "--nonsense"])
    assert "--nonsense" in capsys.readouterr().err


def test_a_failed_step_makes_the_whole_test_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$@"\n[ "$2" != mypy ]\n')
    python.chmod(0o755)
    monkeypatch.setattr(dev, "setup", lambda: None)
    monkeypatch.setattr(dev, "ensure_libraries", lambda needed: None)
    monkeypatch.setattr(dev, "venv_python", lambda: python)
    assert dev.main(["test", "tests/x", "-k", "y"]) == 1
    assert capsys.readouterr().out.endswith("Failed: mypy.\n")


@pytest.mark.parametrize(("cpus", "processes"), [(None, 2), (2, 3), (16, 4)])
def test_a_plain_run_has_one_process_more_than_cpus(
    monkeypatch: pytest.MonkeyPatch, cpus: int | None, processes: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cpus)
    assert dev.test_processes() == processes


def test_steps_keep_bytecode_whatever_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    code = "import sys; sys.exit(sys.dont_write_bytecode)"
    assert dev.run_step([sys.executable, "-c", code]) == 0


@pytest.mark.parametrize(("problem", "way"), [("", "app"), ("There is no display here.", "serve")])
def test_run_serves_where_no_window_can_open(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], problem: str, way: str
) -> None:
    def cannot_install(platform: str) -> NoReturn:
        raise Trouble("not root")

    monkeypatch.setattr(dev, "setup", lambda: None)
    monkeypatch.setattr(dev, "ensure_libraries", cannot_install)
    monkeypatch.setattr(dev, "window_problem", lambda: problem)
    monkeypatch.setattr(dev, "serve", lambda arguments: print("serve", *arguments) or 0)
    monkeypatch.setattr(dev, "run_app", lambda arguments: print("app", *arguments) or 0)
    assert dev.main(["run", "--port", "0"]) == 0
    out = capsys.readouterr().out
    assert out.endswith(f"{way} --port 0\n")
    assert problem in out


def test_a_display_that_nobody_serves_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev, "venv_python", lambda: sys.executable)
    monkeypatch.delenv("QT_QPA_PLATFORM")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.delenv("DISPLAY", raising=False)
    if sys.platform == "linux":
        assert "no display" in dev.window_problem()
    monkeypatch.setenv("QT_QPA_PLATFORM", "offscreen")
    assert dev.window_problem() == ""


def test_trouble_is_one_line_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def setup(*, again: bool) -> NoReturn:
        raise Trouble("The disk is full.")

    monkeypatch.setattr(dev, "setup", setup)
    assert dev.main(["setup"]) == 1
    assert capsys.readouterr().err == "dev.py: The disk is full.\n"


def test_streamed_text_joins_reasoning_and_answer() -> None:
    lines = [
        b'data: {"choices": [{"delta": {"role": "assistant"}}]}\n',
        b"\n",
        b": a comment\n",
        b'data: {"choices": [{"delta": {"reasoning_content": "Hm. "}}]}\n',
        b'data: {"choices": [{"delta": {"content": "Yes"}}]}\n',
        b'data: {"choices": [], "usage": {}}\n',
        b"data: [DONE]\n",
    ]
    assert "".join(dev.streamed_text(lines)) == "Hm. Yes"
    with pytest.raises(Trouble, match="too long"):
        list(dev.streamed_text([b'data: {"error": {"message": "too long"}}\n']))


def test_a_taken_port_is_seen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        assert dev.port_is_taken(port)
    assert not dev.port_is_taken(port)


def test_the_full_page_counts_each_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, left_out, plain = (tmp_path / name for name in ("r.xml", "l.json", "p.txt"))
    results.write_text(
        "<testsuites><testsuite>"
        '<testcase classname="tests.server.test_a" name="x" time="1.5"/>'
        '<testcase classname="tests.server.test_b" name="y" time="0.5"><failure/></testcase>'
        '<testcase classname="tests.app.test_c" name="z" time="0.1"><skipped/></testcase>'
        "</testsuite></testsuites>"
    )
    left_out.write_text('[["gpus", "gpu", 3], ["server", "gpu", 2], ["server", "odd", 1]]')
    monkeypatch.setattr(dev, "PLAIN_TIMES", plain)
    page = dev.full_page(results, left_out)
    assert "| app | 0 | 0 | 1 | 0 | 0.1 |" in page
    assert "| gpus | 0 | 0 | 0 | 3 (gpu) | 0.0 |" in page
    assert "| server | 1 | 1 | 0 | 2 (gpu), 1 (odd) | 2.0 |" in page
    assert "plain" not in page
    plain.write_text("2026-11-29, commit abc: ruff check 1 s, pytest 200 s")
    assert dev.full_page(results, left_out).endswith("abc: ruff check 1 s, pytest 200 s.\n")


@pytest.mark.parametrize(("more", "passes"), [([], True), ([], False), (["tests/x"], True)])
def test_only_a_whole_plain_run_that_passes_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str], passes: bool
) -> None:
    monkeypatch.setattr(dev, "setup", lambda: None)
    monkeypatch.setattr(dev, "ensure_libraries", lambda needed: None)
    monkeypatch.setattr(dev, "run_step", lambda command: int(not passes))
    monkeypatch.setattr(dev, "PLAIN_TIMES", tmp_path / "times.txt")
    assert dev.main(["test", *more]) == int(not passes)
    assert (tmp_path / "times.txt").exists() == (passes and not more)
    if passes and not more:
        said = (tmp_path / "times.txt").read_text()
        assert re.fullmatch(r"[\d-]+, commit \w+: ruff check \d+ s, .*, pytest \d+ s", said)


def test_what_is_left_out_is_written_down_with_its_reason(tmp_path: Path) -> None:
    table = tmp_path / "left-out.json"
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    chosen = ["tests/project/test_fresh_clone.py", "tests/project/test_tree.py"]
    for full in ([], ["--full"]):
        collected = subprocess.run(
            [*command, *full, f"--left-out={table}", *chosen],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        rows = json.loads(table.read_text())
        if full:
            assert rows == []
        else:
            ((suite, marker, count),) = rows
            assert (suite, marker) == ("project", "full")
            assert f"{count} deselected" in collected.stdout


def test_a_full_run_tries_ten_times_as_many_examples(tmp_path: Path) -> None:
    """Of a property of its own, which asks for fewer than usual, and of one that asks for none."""
    (tmp_path / "test_it.py").write_text(
        "from hypothesis import given, settings, strategies as st\n"
        "from tests.properties import examples\n"
        "@settings(max_examples=examples(6))\n"
        "@given(st.floats())\ndef test_few(x): pass\n"
        "@given(st.floats())\ndef test_usual(x): pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml")]
    command += ["-p", "tests.conftest", "-p", "no:cacheprovider", "--hypothesis-show-statistics"]
    tried = []
    for full in ([], ["--full"]):
        run = [*command, *full, str(tmp_path)]
        said = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        tried.append([int(number) for number in re.findall(r" (\d+) passing, ", said)])
    assert tried == [[6, 100], [60, 1000]]
