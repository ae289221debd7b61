"""While clients misbehave in every way, another's stream goes on with the same tokens."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.server import connection as rules
from engine.server.bodies import MAX_BODY_BYTES
from tests.server.raw import Answer, connect, head, post, read, sent
from tests.server.running import Server, frames, running

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
PATHS = (CHAT, MESSAGES, "/v1/completions", "/v1/responses", "/v1/tokenize")
TOKENS = 120
HUGE = 100 << 20
PIECE = b" " * (1 << 20)


@pytest.fixture(scope="module")
def hasty(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Its patience with silent clients is short, so that a test sees the end of it."""
    times = {"KEEP_ALIVE_S": 3.0, "HEAD_S": 1.5, "BODY_S": 1.5}
    home = tmp_path_factory.mktemp("home")
    with running(tiny_model, home, "--device", "cpu", constants={rules.__name__: times}) as started:
        yield started


def reference(server: Server) -> list[Any]:
    """Every token of a long greedy answer with its logprob, as a client streams them."""
    body = {
        "model": server.model,
        "prompt": "once upon a time",
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": 1,
        "stream": True,
    }
    with server.http.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        chunks = [each for each in frames(response) if each != "[DONE]"]
    told = [each["choices"][0]["logprobs"] for each in chunks]
    return [
        pair
        for each in told
        if each
        for pair in zip(each["tokens"], each["token_logprobs"], strict=True)
    ]


def oversized(server: Server, path: str, *, announced: bool) -> Answer:
    """The answer to a body of 100 MiB, of which as much is sent as the server takes."""
    length = f"Content-Length: {HUGE}" if announced else "Transfer-Encoding: chunked"
    with connect(server) as client:
        client.sendall(head("POST", path, length))
        with contextlib.suppress(ConnectionError):  # it is refused long before its end
            for _ in range(HUGE // len(PIECE)):
                chunk = PIECE if announced else b"%x\r\n%s\r\n" % (len(PIECE), PIECE)
                client.sendall(chunk)
        return read(client)


def malformed(server: Server) -> None:
    broken = [b"", b"{", b"null", b"[]", b'{"a":' * 50_000, b"\xff\xfe{}", b'"\xed\xa0\x80"']
    broken += ['{"model": "x"}'.encode("utf-16"), b"\x00" * 1000, b'{"model": 1e999}', b"{}{}"]
    for path, body in itertools.product(PATHS, broken):
        answer = sent(server, post(path, body))
        assert answer.status == 400 and answer.json["error"]["message"], (path, body[:20])


def wrongly_encoded(server: Server) -> None:
    squeezed = gzip.compress(b"{}")
    bomb = gzip.compress(b" " * (MAX_BODY_BYTES + 1))
    for path in PATHS:
        for coding, body, status in (
            ("br", b"{}", 415),
            ("gzip, gzip", squeezed, 415),
            ("gzip", b"{}", 400),
            ("gzip", squeezed[:-5], 400),
            ("gzip", squeezed * 2, 400),
            ("gzip", bomb, 413),
        ):
            answer = sent(server, post(path, body, f"Content-Encoding: {coding}"))
            assert answer.status == status, (path, coding, answer)
            assert answer.json["error"]["message"]


def huge(server: Server) -> None:
    process = psutil.Process(server.process.pid)
    over, before = threading.Event(), process.memory_info().rss

    def peak() -> int:
        most = 0
        while not over.wait(0.005):
            most = max(most, process.memory_info().rss)
        return most

    with ThreadPoolExecutor(1) as threads:
        watched = threads.submit(peak)
        try:
            for path in (CHAT, MESSAGES):
                for announced in (True, False):
                    assert oversized(server, path, announced=announced).status == 413
        finally:
            over.set()
        assert before <= watched.result() < 4 * HUGE
        assert watched.result() - before < HUGE


def slow(server: Server) -> None:
    """In sending a head, a body, in reading an answer, and in all that at once many times."""
    begun = [
        b"POST /v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\n",
        post(CHAT, b" " * 5000)[:-4999],
        head("POST", MESSAGES, "Transfer-Encoding: chunked") + b"1\r\n{\r\n",
    ]
    endless = {"model": server.model, "prompt": "x", "max_tokens": 900, "ignore_eos": True}
    text = json.dumps({**endless, "stream": True}).encode()
    with contextlib.ExitStack() as stack:
        for _ in range(2):  # they ask and never read
            deaf = stack.enter_context(connect(server))
            deaf.sendall(post("/v1/completions", text))
        clients = [stack.enter_context(connect(server)) for _ in begun * 20]
        for client, request in zip(clients, itertools.cycle(begun)):
            client.sendall(request)
        for client in clients:
            assert read(client).status == 408


def idle(server: Server) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(server)) for _ in range(500)]
        assert server.http.get("/health").status_code == 200
        for client in clients:
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(1) == b""  # until it is closed for its silence


@pytest.mark.parametrize("misbehave", [malformed, wrongly_encoded, huge])
def test_a_stream_goes_on_beside_bad_bodies(
    server: Server, misbehave: Callable[[Server], None]
) -> None:
    goes_on(server, misbehave)


@pytest.mark.parametrize("misbehave", [slow, idle])
def test_a_stream_goes_on_beside_silent_clients(
    hasty: Server, misbehave: Callable[[Server], None]
) -> None:
    goes_on(hasty, misbehave)


def goes_on(server: Server, misbehave: Callable[[Server], None]) -> None:
    """The same tokens with the same logprobs before, beside and after it."""
    expected = reference(server)
    assert len(expected) == TOKENS
    faults: list[BaseException] = []

    def attack() -> None:
        try:
            misbehave(server)
        except BaseException as error:  # noqa: BLE001 - told by the test itself
            faults.append(error)

    attacker = threading.Thread(target=attack)
    attacker.start()
    streams = 0
    while attacker.is_alive() or not streams:
        assert reference(server) == expected
        streams += 1
    attacker.join()
    if faults:
        raise faults[0]
    assert reference(server) == expected
    stats = server.stats()
    assert stats["runtime_restarts"] == 0 and stats["state"] == "ready"
    assert "Traceback" not in server.logged()
