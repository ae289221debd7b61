"""What the endpoint adds to a model: first tokens, many streams at once, grammars.

python benchmarks/endpoint.py --json benchmarks/results/<machine>-endpoint.json

The server is a process as always, with a scripted runtime behind it, which answers at once, or
gives every stream a token 50 times a second. The text side is that of --model. A stream's lag is
how late a token arrives, counted from its first one; a server that cannot follow lags more and
more.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import psutil

from engine.chat.model_files import locate
from engine.chat.parsers.tools import Tool
from engine.chat.structured import AnswerFormat, enforced_calls, structured_answer
from engine.chat.text_model import TextModel, load_text_model
from engine.memory.device import resolve_device
from engine.runtime import bench_result
from engine.runtime.bench_result import Result, Row
from engine.runtime.grammar import GrammarCompiler

TOKENS_PER_S = 50
TEXT = "The river turns the wheel and the wheel turns the stone. "
SERVE = """
import sys
from engine.options import EngineOptions
from engine.server.main import ServeOptions, serve
model, *runtime = sys.argv[1:]
serve(ServeOptions(EngineOptions(model=model), port=0, access_log=False,
    runtime_command=(sys.executable, *runtime)))
"""
ROOT = Path(__file__).resolve().parents[1]
RUNTIME = Path(__file__).with_name("scripted_runtime.py")
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 40},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "units": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "days"],
}
EDIT = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "edits": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "old_text": {"type": "string"},
                    "new_text": {"type": "string"},
                    "line": {"type": "integer"},
                    "mode": {"enum": ["replace", "before", "after", None]},
                },
                "required": ["old_text", "new_text"],
            },
        },
    },
    "required": ["path", "edits"],
}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "pattern": "^[a-z_]{1,20}$"},
                "size": {"type": "number"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 8},
            },
            "required": ["name", "children"],
        }
    },
}


# --- the server and its clients -----------------------------------------------------------------


@dataclass
class Running:
    port: int
    process: psutil.Process

    def cpu_s(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)


@contextlib.contextmanager
def running(model: str, tokens: list[int], vocab_size: int) -> Iterator[Running]:
    runtime = [str(RUNTIME), str(vocab_size), str(TOKENS_PER_S), json.dumps(tokens)]
    with tempfile.TemporaryDirectory() as home:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVE, model, *runtime],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "HEADRACE_HOME": home},
        )
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().rsplit(":", 1)[1])
            wait_ready(port)
            yield Running(port, psutil.Process(process.pid))
        finally:
            process.terminate()
            process.communicate(timeout=20)


def wait_ready(port: int) -> None:
    for _ in range(600):
        with contextlib.suppress(urllib.error.HTTPError):
            if urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=9).status == 200:
                return
        time.sleep(0.1)
    raise RuntimeError("the server does not get ready")


class Client:
    """One connection that is kept: HTTP as these requests need it, so that little time is ours."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def arrivals(self, path: str, body: dict[str, Any], mark: bytes) -> AsyncIterator[float]:
        """When each event arrives that holds `mark`. Raises RuntimeError for a refusal."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        assert self._reader is not None
        data = json.dumps({"model": "", **body}).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        self._writer.write(head.encode() + data)
        status = await self._reader.readline()
        if b" 200 " not in status:
            raise RuntimeError((status + await self._reader.read(1000)).decode())
        while await self._reader.readline() != b"\r\n":
            pass
        while size := int(await self._reader.readline(), 16):
            chunk = await self._reader.readexactly(size + 2)
            now = time.perf_counter()
            for _ in range(chunk.count(mark)):
                yield now
        await self._reader.readline()

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            await self._writer.wait_closed()


@dataclass(frozen=True)
class Protocol:
    name: str
    path: str
    mark: bytes
    """What only events with a token's text hold."""

    def body(self, model: str, content: str, tokens: int) -> dict[str, Any]:
        turns = [{"role": "user", "content": content}]
        if self.name == "responses":
            return {"model": model, "input": turns, "max_output_tokens": tokens, "stream": True}
        return {"model": model, "messages": turns, "max_tokens": tokens, "stream": True}


PROTOCOLS = (
    Protocol("chat", "/v1/chat/completions", b'"delta":{"content":'),
    Protocol("responses", "/v1/responses", b'"type":"response.output_text.delta"'),
    Protocol("messages", "/v1/messages", b'"type":"text_delta"'),
)


# --- what is measured ---------------------------------------------------------------------------


async def first_tokens(
    server: Running, model: str, protocol: Protocol, prompt: str, rounds: int
) -> list[float]:
    """Milliseconds from a request to its first text, one request after another."""
    client, waits = Client(server.port), []
    for number in range(rounds + 5):
        body = protocol.body(model, f"{number}. {prompt}", 1)
        begin = time.perf_counter()
        (first,) = [each async for each in client.arrivals(protocol.path, body, protocol.mark)]
        waits.append((first - begin) * 1e3)
    await client.close()
    return waits[5:]


async def lags(
    server: Running, model: str, protocol: Protocol, streams: int, seconds: float
) -> tuple[np.ndarray[Any, Any], float]:
    """Milliseconds [streams, tokens] behind the schedule, and the server's share of a core."""
    wanted = int(seconds * TOKENS_PER_S)

    async def one() -> list[float]:
        client = Client(server.port)
        body = protocol.body(model, TEXT, wanted)
        times = [each async for each in client.arrivals(protocol.path, body, protocol.mark)]
        await client.close()
        if len(times) != wanted:
            raise RuntimeError(f"a stream had {len(times)} of {wanted} tokens")
        return times

    cpu, begin = server.cpu_s(), time.perf_counter()
    arrived = np.array(await asyncio.gather(*(one() for _ in range(streams))))
    used = (server.cpu_s() - cpu) / (time.perf_counter() - begin)
    due = arrived[:, :1] + np.arange(arrived.shape[1]) / TOKENS_PER_S
    return (arrived - due) * 1e3, used


def grammars(text: TextModel, vocab_size: int, rounds: int) -> Iterator[Row]:
    special = text.tokenizer.special
    calls = tuple(Tool(name, schema) for name, schema in (("weather", WEATHER), ("edit", EDIT)))
    documents = {
        "tree": structured_answer(text.family, AnswerFormat("json_schema", TREE), special, "none"),
        "edit": structured_answer(text.family, AnswerFormat("json_schema", EDIT), special, "none"),
        "calls": enforced_calls(text.family, calls, special, "none", several=True),
    }
    compiler = GrammarCompiler(text.vocabulary(), vocab_size)
    compiler.compile(documents["tree"]).result()  # makes the tokenizer
    for name, document in documents.items():
        compiles, masks = [], []
        draw = random.Random(0)
        for _ in range(rounds):
            begin = time.perf_counter()
            grammar = compiler.compile(document).result()
            compiles.append((time.perf_counter() - begin) * 1e3)
            for _ in range(40):
                begin = time.perf_counter()
                mask = grammar.mask()
                masks.append((time.perf_counter() - begin) * 1e6)
                allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
                if grammar.accept(int(draw.choice(allowed.tolist()))):
                    break
        yield from rows(f"grammar {name} compile", compiles, "ms")
        yield from rows(f"grammar {name} mask", masks, "us")
    compiler.close()


def rows(name: str, values: Any, unit: str) -> Iterator[Row]:
    yield Row(name=name, value=round(float(np.median(values)), 2), unit=unit)
    yield Row(name=f"{name} p99", value=round(float(np.percentile(values, 99)), 2), unit=unit)


def measured(options: argparse.Namespace) -> Iterator[Row]:
    text = load_text_model(locate(options.model))
    vocab_size = text.tokenizer.vocab_size
    said = text.tokenizer.encode(TEXT)
    prompt = TEXT * (options.prompt // len(said))
    with running(options.model, said, vocab_size) as server:
        for protocol in PROTOCOLS:
            each = (server, text.name, protocol)
            waits = asyncio.run(first_tokens(*each, prompt, options.rounds))
            yield from rows(f"first token {protocol.name}", waits, "ms")
        for protocol in PROTOCOLS:
            each = (server, text.name, protocol)
            late, used = asyncio.run(lags(*each, options.streams, options.seconds))
            name = f"{options.streams} streams {protocol.name}"
            yield from rows(f"{name} lag", late, "ms")
            yield Row(name=f"{name} lag worst", value=round(float(late.max()), 2), unit="ms")
            half = late.shape[1] // 2
            grown = np.median(late[:, half:]) - np.median(late[:, :half])
            yield Row(name=f"{name} lag grows", value=round(float(grown), 2), unit="ms")
            yield Row(name=f"{name} server", value=round(used * 100, 1), unit="% of a core")
    yield from grammars(text, vocab_size, options.rounds)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="demo", help="whose template and vocabulary are used")
    parser.add_argument("--prompt", type=int, default=1000, help="tokens of a prompt")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--streams", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=20, help="that streams last")
    parser.add_argument("--json", type=Path, help="write the record to this file")
    options = parser.parse_args(arguments)
    result = Result(
        bench="endpoint",
        commit=bench_result.commit(),
        when=bench_result.now(),
        model=options.model,
        machine=bench_result.machine(resolve_device("cpu")),
        rows=list(measured(options)),
        notes=[f"prompts of {options.prompt} tokens; streams of {TOKENS_PER_S} tokens a second"],
    )
    print(bench_result.table(result))
    if options.json:
        bench_result.write(result, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
