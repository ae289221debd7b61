"""Processes that die, hang and hang up: the server says so, comes back, leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import psutil
import pytest

from tests.server.running import Server, assert_gone, frames, running, wait_for

posix = pytest.mark.skipif(os.name == "nt", reason="signals that Windows does not have")
RESTART_S = 10.0
"""From the death of a runtime to the next one's being ready."""
LONG: dict[str, Any] = {"max_tokens": 4000, "ignore_eos": True}


@pytest.fixture(scope="module")
def mortal(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose runtime may be killed, with a quick watchdog."""
    home = tmp_path_factory.mktemp("home")
    options = ("--step-timeout", "1.5", "--owner-grace", "1")
    with running(tiny_model, home, "--device", "cpu", *options) as started:
        yield started


def stream_body(server: Server, **fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": "hi"}
    return {"model": server.model, "messages": [message], "stream": True, **LONG, **fields}


def running_requests(server: Server) -> int:
    return int(server.stats()["requests_running"])


def test_a_hang_up_cancels_in_the_runtime(mortal: Server) -> None:
    with mid_stream(mortal):
        wait_for(lambda: running_requests(mortal) == 1, 5, "running")
    wait_for(lambda: running_requests(mortal) == 0, 3, "cancelled after the stream was closed")
    # The same for an answer that is not streamed.
    with pytest.raises(httpx.ReadTimeout):
        mortal.http.post(
            "/v1/chat/completions", json=stream_body(mortal, stream=False), timeout=0.5
        )
    wait_for(lambda: running_requests(mortal) == 0, 3, "cancelled after the connection was closed")
    assert mortal.chat().status_code == 200 and mortal.stats()["runtime_restarts"] == 0


def test_a_hang_up_frees_the_pages(mortal: Server) -> None:
    """Of every choice, whether the prompt is still being read or the answer written."""
    long = {"role": "user", "content": "The quick brown fox. " * 150}
    for path, fields in (
        ("/v1/chat/completions", {"n": 3}),
        ("/v1/chat/completions", {"n": 3, "messages": [long]}),
        ("/v1/responses", {}),
    ):
        body = stream_body(mortal, **fields)
        if path == "/v1/responses":
            body = {"model": mortal.model, "input": "hi", "stream": True}
        with mortal.http.stream("POST", path, json=body) as response:
            next(frames(response))
        wait_for(lambda: running_requests(mortal) == 0, 3, "cancelled")
        wait_for(lambda: mortal.stats()["kv_tokens_used"] == 0, 3, "pages freed")


@posix
def test_a_killed_runtime_is_an_error_and_comes_back(mortal: Server) -> None:
    runtime = psutil.Process(mortal.stats()["runtime_pid"])
    answers: list[httpx.Response] = []
    whole = threading.Thread(
        target=lambda: answers.append(mortal.chat(**LONG, stream=False, timeout=None))
    )
    anthropic = {**stream_body(mortal), "max_tokens": 4000}
    del anthropic["ignore_eos"]
    whole.start()
    with (
        mortal.http.stream("POST", "/v1/chat/completions", json=stream_body(mortal)) as openai,
        mortal.http.stream("POST", "/v1/messages", json=anthropic) as messages,
    ):
        by_openai, by_anthropic = frames(openai), frames(messages)
        next(by_openai), next(by_openai), next(by_anthropic)
        began = time.monotonic()
        runtime.kill()
        *_, last = by_openai
        assert last["error"]["code"] == "runtime_died" and "SIGKILL" in last["error"]["message"]
        *_, last = by_anthropic
        assert (last["type"], last["error"]["type"]) == ("error", "api_error")
    whole.join(10)
    assert answers[0].status_code == 502
    assert answers[0].json()["error"]["code"] == "runtime_died"
    health = mortal.health()
    assert health["status"] == "restarting" and "SIGKILL" in health["error"]["message"]
    assert mortal.chat().status_code == 503
    mortal.wait_ready(began + RESTART_S - time.monotonic())
    assert mortal.chat().status_code == 200
    stats = mortal.stats()
    assert stats["runtime_restarts"] == 1 and stats["runtime_pid"] != runtime.pid
    assert "SIGKILL" in stats["last_error"]


@posix
def test_a_stuck_runtime_is_restarted(mortal: Server) -> None:
    restarts = mortal.stats()["runtime_restarts"]
    runtime = psutil.Process(mortal.stats()["runtime_pid"])
    with mid_stream(mortal) as source:
        runtime.suspend()
        *_, last = source
    assert "longer than 1.5 s" in last["error"]["message"]
    assert_gone([runtime])
    mortal.wait_ready()
    assert mortal.stats()["runtime_restarts"] == restarts + 1


def start_owner() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def test_a_server_outlives_its_owner_for_the_time_of_grace(mortal: Server) -> None:
    first, second = start_owner(), start_owner()
    try:
        adopt(mortal, first.pid)
        with mid_stream(mortal) as source:
            end(first)
            time.sleep(1.4)  # longer than the grace: a served client keeps the server alive
            assert next(source)["choices"]
            refused = adopt(mortal, 2**22 + 1)
            assert refused.status_code == 400 and refused.json()["error"]["param"] == "pid"
            assert adopt(mortal, second.pid).json() == {"owner_pid": second.pid}
        state = json.loads(mortal.file("json").read_text())
        assert state["owner_pid"] == second.pid
        time.sleep(1.4)
        assert mortal.health()["status"] == "ready"
        family = mortal.family()
        end(second)
        assert mortal.process.wait(10) == 0
        assert_gone(family)
    finally:
        end(first)
        end(second)


@contextlib.contextmanager
def mid_stream(server: Server) -> Iterator[Iterator[Any]]:
    """The frames of a long answer, after the first one with text."""
    with server.http.stream("POST", "/v1/chat/completions", json=stream_body(server)) as response:
        source = frames(response)
        next(source), next(source)
        yield source


def adopt(server: Server, pid: int) -> httpx.Response:
    return server.http.post("/v1/engine/owner", json={"pid": pid}, headers=server.token)


def test_an_owner_that_is_gone_already(tiny_model: Path, tmp_path: Path) -> None:
    owner = start_owner()
    end(owner)
    options = ("--device", "cpu", "--owner-pid", str(owner.pid), "--owner-grace", "0.3")
    with running(tiny_model, tmp_path, *options, ready=False) as server:
        family = server.family()
        assert server.process.wait(10) == 0
        assert_gone(family)


def test_a_shutdown_request_ends_streams_too(tiny_model: Path, tmp_path: Path) -> None:
    with running(tiny_model, tmp_path, "--device", "cpu", ready=False) as server:
        family = server.family()
        with server.http.stream("GET", "/v1/engine/stats/stream") as response:
            source = frames(response)
            next(source)
            answer = server.http.post("/v1/engine/shutdown", headers=server.token)
            assert answer.status_code == 202
            list(source)  # it ends, rather than hold the server up
        assert server.process.wait(10) == 0
        assert_gone(family)


@posix
def test_a_killed_server_takes_its_children_along(tiny_model: Path, tmp_path: Path) -> None:
    """Its files stay behind; the next server replaces them."""
    with running(tiny_model, tmp_path, "--device", "cpu") as server:
        family = server.family()
        assert len(family) == 3  # itself, the runtime, and the process for chat templates
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(5)
        assert_gone(family, 10)
        stale = json.loads(server.file("json").read_text())
        assert not psutil.pid_exists(stale["pid"])
        # So that `running` finds the clean end that it checks for.
        server.file("json").unlink()
        server.file("token").unlink()
