"""The bundled model through the protocols' own clients: a real question has its real answer."""

from __future__ import annotations

from collections.abc import Iterator

import anthropic
import httpx2 as httpx
import openai
import pytest

from tests.server.running import Server, running

QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running("demo", tmp_path_factory.mktemp("home"), "--device", "cpu") as started:
        yield started


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    with httpx.Client(trust_env=False) as client:
        yield client


@pytest.mark.parametrize("stream", [False, True])
def test_by_openai_s_client(demo: Server, http: httpx.Client, stream: bool) -> None:
    client = openai.OpenAI(base_url=f"{demo.url}/v1", api_key="any", http_client=http)
    answer = client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": QUESTION}],
        max_tokens=24,
        temperature=0,
        stream=stream,
    )
    if isinstance(answer, openai.Stream):
        text = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
    else:
        text = answer.choices[0].message.content or ""
    assert "Paris" in text


@pytest.mark.parametrize("stream", [False, True])
def test_by_anthropic_s_client(demo: Server, http: httpx.Client, stream: bool) -> None:
    client = anthropic.Anthropic(base_url=demo.url, api_key="any", http_client=http)
    answer = client.messages.create(
        model="demo",
        messages=[{"role": "user", "content": QUESTION}],
        max_tokens=24,
        extra_body={"temperature": 0},
        stream=stream,
    )
    if isinstance(answer, anthropic.Stream):
        text = "".join(
            event.delta.text
            for event in answer
            if event.type == "content_block_delta" and event.delta.type == "text_delta"
        )
    else:
        text = "".join(block.text for block in answer.content if block.type == "text")
    assert "Paris" in text
