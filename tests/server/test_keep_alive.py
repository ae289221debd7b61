"""A long prefill: streams say that they live, and a client that hangs up costs nothing more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.running import wait_for
from tests.server.speaking import HERMES, Speaker, speaking

USER = [{"role": "user", "content": "hi"}]
STREAMS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": USER, "max_tokens": 9},
}


@pytest.fixture(scope="module")
def slow(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Speaker]:
    """A model that says nothing for as long as one listens."""
    pings = {"engine.server.http": {"PING_S": 0.1}, "engine.server.generation": {}}
    with speaking(tiny_model, tmp_path_factory.mktemp("slow"), HERMES, constants=pings) as speaker:
        speaker.says("", ends=False)
        yield speaker


@pytest.mark.parametrize("path", STREAMS)
def test_a_silent_stream_is_kept_alive_and_cancelled(slow: Speaker, path: str) -> None:
    body = {"model": slow.model, "stream": True, **STREAMS[path]}
    before = cancelled(slow)
    with slow.server.http.stream("POST", path, json=body) as response:
        lines = response.iter_lines()
        pings = 0
        while pings < 3:
            line = next(lines)
            pings += line in (": ping", "event: ping")
    wait_for(lambda: cancelled(slow) == before + 1, 3, "cancelled")


def test_every_choice_is_cancelled(slow: Speaker) -> None:
    before = cancelled(slow)
    body = {"model": slow.model, "stream": True, "messages": USER, "n": 3}
    with slow.server.http.stream("POST", "/v1/chat/completions", json=body) as response:
        next(response.iter_lines())
    wait_for(lambda: cancelled(slow) == before + 3, 3, "cancelled")


def cancelled(speaker: Speaker) -> int:
    try:
        return sum("cancelled" in each for each in speaker.heard())
    except FileNotFoundError:
        return 0
