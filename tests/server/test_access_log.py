"""Where requests leave a line in the log, and what is never in one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest

from tests.server.running import wait_for

SECRET = "a word of the prompt"


@contextlib.contextmanager
def serving(model: Path, home: Path, log: int, *options: str) -> Iterator[str]:
    """The address of a server whose stderr is `log`."""
    arguments = ("--model", str(model), "--port", "0", "--device", "cpu", "--threads", "1")
    process = subprocess.Popen(
        [sys.executable, "-m", "engine.cli", "serve", *arguments, *options],
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env={**os.environ, "HEADRACE_HOME": str(home)},
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.communicate(timeout=20)


def ask(url: str, model: Path) -> None:
    """A whole request, one that is refused, and one that is polled."""
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
        wait_for(lambda: http.get("/health").status_code == 200, 60, "ready")
        body = {"model": model.name, "prompt": SECRET, "max_tokens": 1}
        assert http.post("/v1/completions", json=body).status_code == 200
        assert http.post("/v1/completions?key=" + SECRET, json={"prompt": SECRET}).is_error
        http.get("/v1/engine/stats")


def test_a_file_has_a_line_for_every_request(tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as log, serving(tiny_model, tmp_path, log.fileno()) as url:
        ask(url, tiny_model)
    text = path.read_text()
    assert text.count("headrace.access: POST /v1/completions") == 2
    assert "/health" not in text and "/v1/engine/stats" not in text and SECRET not in text
    assert text.count("the model was loaded") == 1


@pytest.mark.skipif(os.name == "nt", reason="a pseudo-terminal")
@pytest.mark.parametrize(("options", "lines"), [((), 0), (("--access-log",), 2)])
def test_a_terminal_has_them_when_asked(
    tiny_model: Path, tmp_path: Path, options: tuple[str, ...], lines: int
) -> None:
    import pty

    shown, terminal = pty.openpty()
    with serving(tiny_model, tmp_path, terminal, *options) as url:
        ask(url, tiny_model)
    os.close(terminal)
    text = b""
    with contextlib.suppress(OSError):  # the terminal's end
        while more := os.read(shown, 1 << 16):
            text += more
    os.close(shown)
    assert text.count(b"headrace.access") == lines and SECRET.encode() not in text
    assert b"the model was loaded" in text
