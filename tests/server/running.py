"""A server as people run it: a process found by the line it prints, ended, checked for orphans."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import httpx2 as httpx
import psutil

Constants = dict[str, dict[str, Any]]

START_S = 60.0
"""The runtime imports torch; on two slow cores beside other suites that takes its time."""


def wait_for(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """The condition's first true value."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"after {seconds:g} s still not: {what}")
        time.sleep(0.02)


def headrace(
    *arguments: str,
    constants: Constants | None = None,
    stderr: int | IO[str] = subprocess.PIPE,
    **environment: str,
) -> subprocess.Popen[str]:
    """The command, in which constants of modules may have other values: shorter times, say."""
    start = ["-m", "engine.cli"]
    if constants:
        code = (
            "import importlib, json, sys\nfor name, values in json.loads(sys.argv.pop(1)).items():"
        )
        code += "\n    values = {k: tuple(v) if type(v) is list else v for k, v in values.items()}"
        code += "\n    vars(importlib.import_module(name)).update(values)"
        code += "\nfrom engine.cli import main\nsys.exit(main())"
        start = ["-c", code, json.dumps(constants)]
    return subprocess.Popen(
        [sys.executable, *start, *arguments],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env={**os.environ, **environment},
    )


class Server:
    """A running `headrace serve`."""

    def __init__(
        self, process: subprocess.Popen[str], url: str, home: Path, model: str, log: IO[str]
    ) -> None:
        self.process = process
        self._log = log
        self.url = url
        self.home = home
        self.model = model
        self.http = httpx.Client(base_url=url, timeout=60, trust_env=False)

    def logged(self) -> str:
        """All that it has written to its log so far."""
        self._log.seek(0)
        return self._log.read()

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def file(self, kind: str) -> Path:
        """Its record (`json`) or its control token (`token`)."""
        (found,) = (self.home / "servers").glob(f"*.{kind}")
        return found

    @property
    def token(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.file('token').read_text()}"}

    def health(self) -> dict[str, Any]:
        return dict(self.http.get("/health").json())

    def stats(self) -> dict[str, Any]:
        return dict(self.http.get("/v1/engine/stats").json())

    def wait_ready(self, seconds: float = START_S) -> None:
        def answered() -> bool:
            health = self.health()
            assert health["status"] != "failed", health
            return bool(health["status"] == "ready")

        wait_for(answered, seconds, "ready")

    def chat(self, content: str = "hi", **fields: Any) -> httpx.Response:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": 4,
            **fields,
        }
        return self.http.post("/v1/chat/completions", json=body)

    def family(self) -> list[psutil.Process]:
        server = psutil.Process(self.process.pid)
        return [server, *server.children(recursive=True)]


@contextlib.contextmanager
def running(
    model: Path | str,
    home: Path,
    *options: str,
    ready: bool = True,
    constants: Constants | None = None,
) -> Iterator[Server]:
    """A server on a free port; afterwards neither it nor any child of it may be left."""
    # Nobody reads what it logs: in a pipe that is full it would wait for ever.
    with tempfile.TemporaryFile("w+") as log:
        process = headrace(
            *("serve", "--model", str(model), "--port", "0", "--threads", "1", *options),
            constants=constants,
            stderr=log,
            HEADRACE_HOME=str(home),
        )
        family: list[psutil.Process] = []
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.startswith("Headrace listens on http://"):
                log.seek(0)
                raise AssertionError(line + log.read())
            server = Server(process, line.split()[-1], home, Path(model).name, log)
            with server.http:
                if ready:
                    server.wait_ready()
                yield server
                if process.poll() is None:
                    family = server.family()
                    process.terminate()
                    assert process.wait(20) == 0
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()
    assert_gone(family)
    assert not list((home / "servers").iterdir())


def assert_gone(family: list[psutil.Process], seconds: float = 5.0) -> None:
    wait_for(lambda: not any(alive(process) for process in family), seconds, f"gone: {family}")


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def frames(response: httpx.Response) -> Iterator[Any]:
    """The data of server-sent events: JSON, or the bare text [DONE]."""
    for line in response.iter_lines():
        if line.startswith("data: "):
            data = line.removeprefix("data: ")
            yield data if data == "[DONE]" else json.loads(data)
