"""Connections that do not behave: each is refused in JSON, within bounded time, and let go of."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.server import connection as rules
from engine.server.connection import BODY_LEAST_BYTES
from tests.server.raw import Answer, connect, head, post, read, sent
from tests.server.running import Constants, Server, frames, running

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"


def chunked(path: str, *chunks: bytes) -> bytes:
    return head("POST", path, "Transfer-Encoding: chunked") + b"".join(chunks)


@pytest.mark.parametrize(
    ("request_", "status", "code"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "invalid_http"),
        (b"G@T /health HTTP/1.1\r\nHost: x\r\n\r\n", 400, "invalid_http"),
        (b"GET /health\r\n\r\n", 400, "invalid_http"),
        (b"GET /health HTTP/1.1\r\n\r\n", 400, "invalid_http"),
        (head("GET", "/health", "Host: other"), 400, "invalid_http"),
        (head("GET", "/health", "No colon"), 400, "invalid_http"),
        (head("POST", CHAT, "Content-Length: -4"), 400, "invalid_http"),
        (head("POST", CHAT, "Content-Length: 4", "Content-Length: 5"), 400, "invalid_http"),
        (chunked(CHAT, b"zz\r\n"), 400, "invalid_http"),
        (chunked(CHAT, b"2\r\n{}ab\r\n0\r\n\r\n"), 400, "invalid_http"),
        (head("POST", CHAT, "Transfer-Encoding: gzip"), 501, "unsupported_transfer_encoding"),
        (head("GET", "/health", "X: " + "a" * 200_000), 431, "headers_too_large"),
        (head("GET", "/" + "a" * 200_000), 431, "headers_too_large"),
    ],
)
def test_what_is_not_http_is_refused_in_json(
    server: Server, request_: bytes, status: int, code: str
) -> None:
    answer = sent(server, request_)
    assert (answer.status, answer.closed) == (status, True)
    assert answer.headers["content-type"] == "application/json"
    assert answer.json["error"]["code"] == code and answer.json["error"]["message"]


@pytest.mark.parametrize(
    "request_",
    [chunked(MESSAGES, b"zz\r\n"), head("POST", MESSAGES + "?a", "X: " + "a" * 200_000)],
)
def test_the_refusal_is_in_the_shape_of_the_path(server: Server, request_: bytes) -> None:
    assert sent(server, request_).json["type"] == "error"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", CHAT, 405),
        ("GET", MESSAGES, 405),
        ("TRACE", "/v1/models", 405),
        ("GET", "/nowhere", 404),
        ("CONNECT", "example.org:443", 404),
        ("GET", "/%ff%00", 404),
        ("A" * 3000, "/health", 405),
    ],
)
def test_other_paths_and_methods_are_refused_in_json(
    server: Server, method: str, path: str, status: int
) -> None:
    answer = sent(server, head(method, path))
    assert answer.status == status and answer.json["error"]["message"]
    assert len(answer.body) < 2000


@pytest.mark.parametrize("line", [b"\r\n", b"\n"])
def test_a_head_has_a_limit_however_it_comes(server: Server, line: bytes) -> None:
    """In one piece, in two, and behind another request."""
    for size, status in ((rules.HEAD_BYTES - 200, 200), (rules.HEAD_BYTES + 1, 431)):
        head_ = line.join([b"GET /health HTTP/1.1", b"Host: 127.0.0.1", b"X: " + b"a" * size])
        whole = head_ + line + line
        assert sent(server, whole).status == status
        for first in (size // 2, len(whole) - 1):
            with connect(server) as connection:
                connection.sendall(whole[:first])
                time.sleep(0.1)  # so that the server reads it alone
                with contextlib.suppress(OSError):
                    connection.sendall(whole[first:])
                assert read(connection).status == status
        with connect(server) as connection:
            connection.sendall(head("GET", "/health") + whole)
            with connection.makefile("rb") as source:
                for expected in (200, status):
                    assert int(source.readline().split()[1]) == expected
                    lines = iter(source.readline, b"\r\n")
                    headers = dict(each.strip().lower().split(b": ", 1) for each in lines)
                    source.read(int(headers[b"content-length"]))


def test_a_target_in_absolute_form(server: Server) -> None:
    """Its host counts, not the header's; paths, queries and refusals are as ever."""
    for target, host, status in (
        (f"http://127.0.0.1:{server.port}/health", "127.0.0.1", 200),
        ("HTTP://localhost", "127.0.0.1", 200),
        (f"http://127.0.0.1:{server.port}/health", "evil.example", 200),
        ("http://evil.example/health", "127.0.0.1", 403),
        ("http://me@127.0.0.1/health", "127.0.0.1", 403),
        ("http:///health", "127.0.0.1", 403),
        ("http://127.0.0.1/nowhere", "127.0.0.1", 404),
        ("http://127.0.0.1/v1/models?made_up=1", "127.0.0.1", 400),
    ):
        request = f"GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
        assert sent(server, request).status == status, target
    refused = sent(server, head("POST", f"http://127.0.0.1{MESSAGES}", "X: " + "a" * 200_000))
    assert refused.json["type"] == "error"


def test_a_head_request_has_no_body_and_an_end(server: Server) -> None:
    paths = ("/health", "/v1/models", "/nowhere", CHAT, "/v1/engine/stats/stream")
    for path in paths:
        with connect(server) as connection:
            connection.sendall(head("HEAD", path) + head("GET", "/health", "Connection: close"))
            with connection.makefile("rb") as source:
                answers = source.read()
            assert answers.count(b"HTTP/1.1 ") == 2 and answers.endswith(b"}"), path


def test_an_offer_of_another_protocol_is_answered_in_this_one(server: Server) -> None:
    answer = sent(server, head("GET", "/health", "Connection: Upgrade", "Upgrade: websocket"))
    assert answer.status == 200


def test_requests_one_after_the_other_in_one_piece(server: Server) -> None:
    body = json.dumps({"model": server.model, "prompt": "x", "max_tokens": 1}).encode()
    with connect(server) as connection:
        last = post("/v1/completions", body, "Connection: close")
        connection.sendall(post("/v1/completions", body) * 2 + last)
        with connection.makefile("rb") as source:
            answers = source.read()
    assert answers.count(b"HTTP/1.1 200") == answers.count(b'"text_completion"') == 3


def test_a_stream_over_a_connection_that_is_to_close(server: Server) -> None:
    body = {"model": server.model, "prompt": "x", "max_tokens": 3, "stream": True}
    for version in ("1.0", "1.1"):
        text = json.dumps(body).encode()
        lines = (f"Content-Length: {len(text)}", "Connection: close")
        with connect(server) as connection:
            connection.sendall(head("POST", "/v1/completions", *lines, version=version) + text)
            with connection.makefile("rb") as source:
                assert b"data: [DONE]" in source.read()


# --- clients that fall silent -----------------------------------------------------------------


@pytest.fixture(scope="module")
def hasty(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose patience with silent clients is short."""
    times = {"KEEP_ALIVE_S": 1.0, "HEAD_S": 0.6, "BODY_S": 0.6}
    home = tmp_path_factory.mktemp("home")
    with running(tiny_model, home, "--device", "cpu", constants={rules.__name__: times}) as started:
        yield started


def ending(connection: socket.socket) -> bytes:
    with contextlib.suppress(ConnectionError):
        return connection.recv(1)
    return b""


@pytest.mark.parametrize(
    ("request_", "shape"),
    [
        (b"P", "openai"),
        (b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n", "openai"),
        (b"POST /v1/messages HTTP/1.1\r\n", "anthropic"),
        (post(CHAT, b" " * 90)[:-80], "openai"),
        (post(MESSAGES, b" " * 90)[:-80], "anthropic"),
        (chunked(CHAT, b"1\r\n{\r\n"), "openai"),
        (head("POST", CHAT, "Content-Length: 9", "Expect: 100-continue"), "continue"),
    ],
)
def test_half_a_request_is_refused_in_time(hasty: Server, request_: bytes, shape: str) -> None:
    with connect(hasty) as connection:
        connection.sendall(request_)
        if shape == "continue":
            assert connection.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        answer = read(connection)
    assert (answer.status, answer.closed) == (408, True)
    assert (answer.json.get("type") == "error") == (shape == "anthropic")
    assert "did not come in time" in answer.json["error"]["message"]


def test_half_a_request_after_a_whole_one(hasty: Server) -> None:
    with connect(hasty) as connection:
        connection.sendall(head("GET", "/health"))
        assert read(connection).status == 200
        connection.sendall(b"GET /health HT")
        assert read(connection).status == 408


def test_a_head_or_body_that_trickles_is_refused(hasty: Server) -> None:
    for begun in (b"GET /health HTTP/1.1\r\nX: ", post(CHAT, b" " * 4000)[:-4000]):
        assert trickled(hasty, begun, b" ").status == 408


def trickled(server: Server, begun: bytes, piece: bytes, pieces: int = 200) -> Answer:
    """The answer to a request whose rest comes piece by piece until there is one."""
    with connect(server) as connection:
        connection.sendall(begun)
        connection.settimeout(0.05)
        for _ in range(pieces):
            connection.sendall(piece)
            with contextlib.suppress(TimeoutError):
                if connection.recv(1, socket.MSG_PEEK):
                    break
        connection.settimeout(30)
        return read(connection)


def test_a_slow_upload_that_goes_on_is_served(hasty: Server) -> None:
    body = json.dumps({"model": hasty.model, "prompt": "x", "max_tokens": 1}).encode()
    size, pieces = BODY_LEAST_BYTES, 40  # of 0.05 s and more each: thrice the patience
    body += b" " * (size * pieces - len(body))
    answer = trickled(
        hasty, post("/v1/completions", body)[: -len(body)] + body[:size], b" " * size, pieces - 1
    )
    assert answer.status == 200


def test_a_connection_that_says_nothing_is_closed(hasty: Server) -> None:
    with connect(hasty) as fresh, connect(hasty) as used:
        used.sendall(head("GET", "/health"))
        assert read(used).status == 200
        assert ending(fresh) == ending(used) == b""


def test_the_rest_of_a_refused_upload_is_not_waited_for(hasty: Server) -> None:
    """Whether it stops or goes on for ever."""
    for rest in (b"", b" " * 4 * BODY_LEAST_BYTES):
        with connect(hasty) as connection:
            connection.sendall(head("POST", "/nowhere", f"Content-Length: {1 << 30}"))
            assert read(connection).status == 404
            began = time.monotonic()
            with contextlib.suppress(ConnectionError):
                while time.monotonic() - began < 20:
                    connection.settimeout(0.05 if rest else 20)
                    connection.sendall(rest)
                    with contextlib.suppress(TimeoutError):
                        assert connection.recv(1) == b""
                        break
                else:
                    pytest.fail("it was waited for")


def test_silence_after_the_request_is_no_fault(hasty: Server) -> None:
    """Neither while an answer is made nor while one is streamed."""
    with hasty.http.stream("GET", "/v1/engine/stats/stream?interval=0.5") as response:
        source = frames(response)
        for _ in range(6):
            next(source)
    fields = {"max_tokens": 400, "ignore_eos": True}
    assert hasty.chat(**fields).json()["usage"]["completion_tokens"] == 400


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit")
def test_a_low_limit_of_open_files_is_raised(tiny_model: Path, tmp_path: Path) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
        try:
            server = stack.enter_context(running(tiny_model, tmp_path, ready=False))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(200):
            stack.enter_context(connect(server))
        assert server.health()["model"] == server.model


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit")
@pytest.mark.parametrize("begun", [b"", b"GET /health HT"])
def test_where_few_files_may_be_open_idle_connections_make_room(
    tiny_model: Path, tmp_path: Path, begun: bytes
) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # As where no more may be had.
    few: Constants = {"engine.server.listening": {"DESCRIPTORS": 128}}
    with contextlib.ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
        try:
            server = stack.enter_context(running(tiny_model, tmp_path, ready=False, constants=few))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        idle = [stack.enter_context(connect(server)) for _ in range(200)]
        for connection in idle:
            with contextlib.suppress(ConnectionError):
                connection.sendall(begun)
        assert server.health()["model"] == server.model
        idle[0].settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            assert idle[0].recv(1) == b""  # the oldest
        server.process.terminate()
        server.process.wait(20)
        log = server.logged()
    assert log.count("new connections wait") <= 1
    assert "Traceback" not in log


def test_idle_and_half_open_connections_disturb_nobody(server: Server) -> None:
    expected = server.chat(temperature=0).json()["choices"]
    with contextlib.ExitStack() as stack:
        for number in range(500):
            connection = stack.enter_context(connect(server))
            if number % 2:
                connection.sendall(post(CHAT, b" " * 90)[:-80])
        assert server.chat(temperature=0).json()["choices"] == expected
        with server.http.stream("GET", "/v1/engine/stats/stream") as response:
            assert next(frames(response))["state"] == "ready"
