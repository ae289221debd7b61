"""The chat verb, and that none of the server's programs imports torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.running import START_S, headrace
from tests.server.tiny_model import CONTEXT


def run(*arguments: str, typed: str = "") -> tuple[int, str, str]:
    process = headrace(*arguments)
    out, err = process.communicate(typed, timeout=START_S)
    return process.returncode, out, err


def test_chat_prints_just_the_answer(tiny_model: Path) -> None:
    arguments = ("chat", "--model", str(tiny_model), "--device", "cpu", "--threads", "1")
    greedy = (*arguments, "--temperature", "0", "--max-tokens", "6")
    code, once, err = run(*greedy, "--prompt", "hi")
    assert (code, err) == (0, "") and once.endswith("\n") and len(once) > 1
    # The same by turns from standard input: the second starts over, so it answers alike.
    process = subprocess.Popen(
        [sys.executable, "-m", "engine.cli", *greedy],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    talk, _ = process.communicate("hi\n/new\n\nhi\n/quit\n", timeout=START_S)
    assert process.returncode == 0 and talk == once * 2


@pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")
def test_ctrl_c_at_the_prompt_ends_the_program(tiny_model: Path) -> None:
    import fcntl
    import pty
    import termios

    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "engine.cli", "chat", "--model", str(tiny_model), "--device", "cpu"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    shown = b""
    try:
        while not shown.endswith(b"> "):
            shown += os.read(ours, 1024)
        os.write(ours, b"\x03")
        assert process.wait(10) == 130
        shown += os.read(ours, 4096)
    finally:
        process.kill()
        process.communicate()
        os.close(ours)
    assert b"Traceback" not in shown and b"Fatal" not in shown


def test_an_answer_that_the_terminal_cannot_show_is_shown_as_far_as_it_can(
    tiny_model: Path,
) -> None:
    arguments = ("chat", "--model", str(tiny_model), "--device", "cpu", "--prompt", "hi")
    process = headrace(
        # Hot, so that a model of random weights says every byte there is.
        *(*arguments, "--temperature", "2", "--seed", "1", "--max-tokens", "200"),
        PYTHONIOENCODING="ascii",
    )
    out, err = process.communicate(timeout=START_S)
    assert (process.returncode, err) == (0, "") and "?" in out and out.isascii()


def test_the_demo_model_answers() -> None:
    arguments = ("chat", "--model", "demo", "--device", "cpu", "--temperature", "0")
    code, out, err = run(
        *arguments, "--max-tokens", "12", "--prompt", "What is the capital of France?"
    )
    assert (code, err) == (0, "") and "Paris" in out


@pytest.mark.skipif(os.name == "nt", reason="arguments are text there")
def test_bytes_that_are_no_text_are_shown_to_the_model_as_such(tiny_model: Path) -> None:
    arguments = ["chat", "--model", str(tiny_model), "--max-tokens", "2", "--prompt"]
    done = subprocess.run(
        [os.fsencode(a) for a in (sys.executable, "-m", "engine.cli", *arguments)] + [b"\xff hi"],
        capture_output=True,
        timeout=START_S,
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_an_output_that_takes_nothing_is_one_sentence(tiny_model: Path) -> None:
    arguments = ["chat", "--model", str(tiny_model), "--max-tokens", "2", "--prompt", "hi"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "engine.cli", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=START_S,
        )
    assert done.returncode == 1 and b"No space left" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_prompt_that_is_too_long_is_one_sentence(tiny_model: Path) -> None:
    arguments = ("chat", "--model", str(tiny_model), "--device", "cpu", "--threads", "1")
    code, out, err = run(*arguments, "--context", "64", "--prompt", "word " * 200)
    assert code == 1 and out == ""
    assert err.startswith("error: This model's maximum context length is 64") and "hint: " in err
    assert "larger --context" in err and str(CONTEXT) in err


def test_why_a_model_does_not_load_is_told_once(tiny_model: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(tiny_model, tmp_path / "broken"))
    (model / "model.safetensors").unlink()
    code, out, err = run("chat", "--model", str(model), "--device", "cpu", "--prompt", "hi")
    assert (code, out) == (1, "")
    first, second = err.splitlines()
    assert first.startswith(f"error: {model} holds no weights") and second.startswith("hint: ")


def test_the_server_and_its_verbs_import_no_torch() -> None:
    code = (
        "import pkgutil, sys, engine.chat, engine.server\n"
        "for package in (engine.chat, engine.server):\n"
        "    for module in pkgutil.iter_modules(package.__path__):\n"
        "        __import__(f'{package.__name__}.{module.name}')\n"
        "import engine.cli\n"
        "heavy = {'torch', 'transformers', 'numpy', 'PySide6', 'triton'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
