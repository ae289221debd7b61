"""The chat verb, and that none of the server's programs imports torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.server.running import START_S, headrace


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


def test_the_demo_model_answers() -> None:
    arguments = ("chat", "--model", "demo", "--device", "cpu", "--temperature", "0")
    code, out, err = run(
        *arguments, "--max-tokens", "12", "--prompt", "What is the capital of France?"
    )
    assert (code, err) == (0, "") and "Paris" in out


def test_a_prompt_that_is_too_long_is_one_sentence(tiny_model: Path) -> None:
    arguments = ("chat", "--model", str(tiny_model), "--device", "cpu", "--threads", "1")
    code, out, err = run(*arguments, "--context", "64", "--prompt", "word " * 200)
    assert code == 1 and out == ""
    assert err.startswith("error: This model's maximum context length is 64") and "hint: " in err


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
