"""Long texts: who counts their tokens keeps nobody from an answer, nor the server from ending."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

from engine.chat.pieces import UNBROKEN
from tests.server.raw import connect, post, read
from tests.server.running import Server, running

COUNT = "/v1/messages/count_tokens"
LONG = "word " * 5_000_000


def body(server: Server, content: str) -> bytes:
    message = {"role": "user", "content": content}
    return json.dumps({"model": server.model, "messages": [message]}).encode()


def ask(server: Server, path: str = "/v1/messages") -> bool:
    """Whether a short request is answered before a client would give up."""
    asked = {**json.loads(body(server, "hi")), **({} if path == COUNT else {"max_tokens": 1})}
    return server.http.post(path, json=asked, timeout=20).status_code == 200


def test_counts_whose_clients_have_hung_up_keep_nobody_waiting(server: Server) -> None:
    for _ in range(12):
        with connect(server) as connection:
            connection.sendall(post(COUNT, body(server, "a" * 1_500_000)))
    assert ask(server)


def test_counts_in_work_keep_no_chat_waiting(server: Server) -> None:
    with contextlib.ExitStack() as counting:
        for _ in range(3):
            connection = counting.enter_context(connect(server))
            connection.sendall(post(COUNT, body(server, LONG)))
        assert ask(server)
    assert ask(server, COUNT)  # those that are gone have left the threads


def test_a_count_does_not_hold_up_the_end(tiny_model: Path, tmp_path: Path) -> None:
    with running(tiny_model, tmp_path) as server, connect(server) as connection:
        connection.sendall(post(COUNT, body(server, LONG)))
        time.sleep(1)
        server.process.terminate()
        assert server.process.wait(10) == 0


def test_a_text_that_no_tokenizer_can_divide_is_refused(server: Server) -> None:
    """The vocabulary has tokens with `er` and tokens with `re`."""
    unbroken = "er" * UNBROKEN
    answer = server.http.post(COUNT, content=body(server, unbroken))
    assert answer.status_code == 413, answer.text
    error = answer.json()["error"]
    assert error["type"] == "request_too_large" and str(UNBROKEN) in error["message"]


def test_an_orphaned_server_stays_for_a_request_that_it_prepares(
    tiny_model: Path, tmp_path: Path
) -> None:
    owner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    options = ("--owner-pid", str(owner.pid), "--owner-grace", "1")
    with running(tiny_model, tmp_path, *options) as server, connect(server) as connection:
        asked = post("/v1/chat/completions", body(server, "hi")[:-1] + b', "max_tokens": 2}')
        connection.sendall(asked[:-2])
        owner.communicate()
        time.sleep(4)  # the whole of the grace and more, in which the request is not complete
        connection.sendall(asked[-2:])
        assert read(connection).status == 200
        assert server.process.wait(20) == 0
