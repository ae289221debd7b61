"""A model has several end tokens: each ends an answer, and none is part of its text."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from engine.chat.model_files import locate
from engine.options import EngineOptions
from engine.server.app import create_app
from engine.server.keys import KeyRing
from engine.server.ownership import Ownership
from engine.server.runtime_link import RuntimeLink
from engine.server.service import Service
from tests.server import scripted_runtime
from tests.server.running import Server, frames
from tests.server.scripted_runtime import SECOND_END

MESSAGES = [{"role": "user", "content": "hi"}]


def answered(model: Path, path: str, **fields: Any) -> httpx.Response:
    """By a runtime that writes two tokens, the second end, and goes on unless that ends it."""

    async def run() -> httpx.Response:
        script = str(scripted_runtime.__file__)
        link = RuntimeLink(
            EngineOptions(model=str(model)), command=(sys.executable, script, "writes-past-ends")
        )
        service = Service(locate(str(model)), model.name, link)
        service.start()
        try:
            await link.wait_loaded()
            app = create_app(
                service,
                Ownership(host="127.0.0.1", port=1),
                lambda reason: None,
                keys=KeyRing("a key"),
            )
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(
                transport=transport,
                base_url="http://127.0.0.1",
                headers={"Authorization": "Bearer a key"},
            ) as http:
                body = {"model": model.name, "max_tokens": 4, **fields}
                return await http.post(path, json=body)
        finally:
            await service.close()

    return asyncio.run(asyncio.wait_for(run(), 60))


@pytest.fixture
def written(tiny_model: Path) -> str:
    """The text of the tokens before the end."""
    from transformers import AutoTokenizer

    return str(AutoTokenizer.from_pretrained(tiny_model).decode([40, 41]))


def test_the_second_end_token_ends_an_answer(tiny_model: Path, written: str) -> None:
    answer = answered(tiny_model, "/v1/chat/completions", messages=MESSAGES).json()
    (choice,) = answer["choices"]
    assert choice["message"]["content"] == written and choice["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 2
    answer = answered(tiny_model, "/v1/messages", messages=MESSAGES).json()
    assert answer["content"] == [{"type": "text", "text": written}]
    assert answer["stop_reason"] == "end_turn" and answer["stop_sequence"] is None


def test_the_second_end_token_ends_a_stream(tiny_model: Path, written: str) -> None:
    answer = answered(tiny_model, "/v1/chat/completions", messages=MESSAGES, stream=True)
    *chunks, done = frames(answer)
    assert done == "[DONE]" and chunks[-1]["choices"][0]["finish_reason"] == "stop"
    texts = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks]
    assert "".join(texts) == written


def test_the_runtime_knows_of_the_second_end_token(server: Server) -> None:
    bias = {str(SECOND_END): 100}
    answer = server.chat(temperature=0, logit_bias=bias).json()
    (choice,) = answer["choices"]
    assert choice["message"]["content"] == "" and choice["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 0
    on = server.chat(temperature=0, logit_bias=bias, ignore_eos=True).json()
    (choice,) = on["choices"]
    assert choice["message"]["content"] == "" and choice["finish_reason"] == "length"
    assert on["usage"]["completion_tokens"] == 4
