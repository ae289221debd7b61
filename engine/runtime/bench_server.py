"""A server of its own for a measurement, and what a client of it sees."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.child_process import environment, module
from engine.errors import HeadraceError

PATIENCE_S = 900.0
POLL_S = 0.02
TEXT = (
    "The river turns a wheel and the wheel turns one stone that grinds corn for bread while water "
    "runs below over gravel between green banks where children fish with lines of thread in summer"
)


@dataclass
class Served:
    port: int
    began: float
    """Seconds on time.perf_counter's clock: when the process was started."""
    process: subprocess.Popen[str]
    log: Path

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """The answer's JSON, and its status."""
        status, answer = self._ask(method, path, body)
        if status != 200:
            raise HeadraceError(f"{path} answered {status}: {answer}")
        return answer

    def _ask(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            head = {"Content-Type": "application/json"}
            connection.request(method, path, json.dumps(body) if body is not None else None, head)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def stages(self) -> list[tuple[str, float]]:
        """What it was doing until it was ready, each with its end in seconds since the start."""
        found: list[tuple[str, float]] = [("listening", time.perf_counter() - self.began)]
        phase = ""
        while True:
            status, health = self._ask("GET", "/health", None)
            now = time.perf_counter() - self.began
            if status == 200:
                return [*found, (phase or "loading", now)]
            if error := health.get("error"):
                raise HeadraceError(error["message"], hint=error.get("hint", ""))
            if health["phase"] != phase:
                if phase:
                    found.append((phase, now))
                phase = health["phase"]
            if self.process.poll() is not None:
                raise HeadraceError(f"The server ended: {self.log.read_text()[-2000:]}")
            time.sleep(POLL_S)

    def first_text(self, messages: list[dict[str, str]], tokens: int) -> tuple[float, str]:
        """Seconds from the request to its first text, and all of its text."""
        body = {
            "model": self.request("GET", "/health")["model"],
            "messages": messages,
            "max_tokens": tokens,
            "stream": True,
            "temperature": 0,
            "ignore_eos": True,
        }
        begin, first, pieces = time.perf_counter(), 0.0, []
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            head = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), head)
            answer = connection.getresponse()
            if answer.status != 200:
                raise HeadraceError(f"The server refused: {answer.read().decode()}")
            for line in answer:
                if not line.startswith(b"data: {"):
                    continue
                for choice in json.loads(line[6:]).get("choices", []):
                    delta = choice.get("delta", {})
                    text = delta.get("content") or delta.get("reasoning_content") or ""
                    # Tokens of no text of their own are told by the answer's end at the latest.
                    if not first and (text or choice.get("finish_reason")):
                        first = time.perf_counter() - begin
                    pieces.append(text)
        return first, "".join(pieces)

    def text(self, tokens: int, draw: random.Random) -> str:
        """As many words as make so many tokens, or a few less."""
        count = tokens
        words = draw.choices(TEXT.split(), k=count)
        while True:
            text = " ".join(words[:count])
            found = self.request("POST", "/tokenize", {"content": text})["count"]
            if found <= tokens:
                return text
            count = min(count - 1, count * tokens // found)


@contextlib.contextmanager
def serving(arguments: list[str]) -> Iterator[Served]:
    """`headrace serve` with these arguments, on a port and with files of its own."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as home:
        log = Path(home) / "log"
        began = time.perf_counter()
        with log.open("w") as kept:
            process = subprocess.Popen(
                [*module("engine.cli"), "serve", *arguments, "--port", "0"],
                stdout=subprocess.PIPE,
                stderr=kept,
                text=True,
                env={**environment(), "HEADRACE_HOME": home},
            )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if "listens" not in line:
                process.wait()
                raise HeadraceError(f"The server ended: {log.read_text()[-2000:]}")
            yield Served(int(line.rsplit(":", 1)[1]), began, process, log)
        finally:
            process.terminate()
            process.communicate()
