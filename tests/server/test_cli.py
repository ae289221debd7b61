"""The chat verb, and that none of the server's programs imports torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
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


class Terminal:
    """`headrace chat` in a terminal of its own; what it prints comes together, in order."""

    def __init__(self, *options: str) -> None:
        import fcntl
        import pty
        import termios

        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "engine.cli", "chat", "--device", "cpu", *options],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        self.shown = b""

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def until(self, shown: Callable[[bytes], bool]) -> bytes:
        """What is printed from now on, until it is as wanted or the program ends."""
        now = b""
        while not shown(now):
            try:
                now += os.read(self._ours, 1024)
            except OSError:  # the other side is closed
                break
        self.shown += now
        return now

    def prompt(self) -> bytes:
        return self.until(lambda now: now.endswith(b"> "))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(*options: str) -> Terminal:
        opened.append(Terminal(*options))
        return opened[-1]

    yield start
    for one in opened:
        one.close()
        assert b"Traceback" not in one.shown and b"Fatal" not in one.shown


@pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")
def test_ctrl_c_at_the_prompt_ends_the_program_at_the_second_time(
    tiny_model: Path, terminal: Callable[..., Terminal]
) -> None:
    chat = terminal("--model", str(tiny_model))
    assert b"Ctrl-C stops an answer" in chat.prompt()
    for _ in range(2):  # what is typed in between makes the next one the first again
        chat.type(b"half a line\x03")
        assert b"Once more" in chat.prompt()
        chat.type(b"/new\n")
        chat.prompt()
    chat.type(b"\x03")
    chat.prompt()
    chat.type(b"\x03")
    chat.until(lambda _: False)
    assert chat.process.wait(10) == 130


@pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")
def test_ctrl_c_in_an_answer_ends_that_alone(
    tiny_model: Path, terminal: Callable[..., Terminal]
) -> None:
    chat = terminal("--model", str(tiny_model), "--temperature", "0")
    chat.prompt()
    chat.type(b"hi\n")
    chat.until(lambda now: len(now) > 40)
    chat.type(b"\x03")
    chat.prompt()
    assert chat.process.poll() is None
    chat.type(b"\x04")
    chat.until(lambda _: False)
    assert chat.process.wait(10) == 0


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
