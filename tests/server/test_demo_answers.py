"""The bundled model through the protocols' own clients: a real question has its real answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx2 as httpx
import jsonschema
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


PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "big": {"type": "boolean"}},
    "required": ["city", "big"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_in_a_schema(demo: Server, http: httpx.Client, stream: bool) -> None:
    client = openai.OpenAI(base_url=f"{demo.url}/v1", api_key="any", http_client=http)
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "place", "schema": PLACE}}
    answer: Any = client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": QUESTION}],
        max_tokens=80,
        temperature=0,
        response_format=wanted,
        stream=stream,
    )
    if stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
    else:
        text = answer.choices[0].message.content
    jsonschema.validate(json.loads(text), PLACE)
    told = client.responses.create(
        model="demo",
        input=QUESTION,
        temperature=0,
        max_output_tokens=80,
        text={"format": {"type": "json_schema", "name": "place", "schema": PLACE}},
    )
    jsonschema.validate(json.loads(told.output_text), PLACE)


def test_a_call_that_must_be_made(demo: Server, http: httpx.Client) -> None:
    """By a model that was taught no tools at all, in every protocol."""
    client = openai.OpenAI(base_url=f"{demo.url}/v1", api_key="any", http_client=http)
    other = anthropic.Anthropic(base_url=demo.url, api_key="any", http_client=http)
    described = {"name": "visit", "description": "Goes to a place.", "parameters": PLACE}
    asked: Any = [{"role": "user", "content": "Visit Paris."}]
    chat: Any = client.chat.completions.create(
        model="demo",
        messages=asked,
        tools=[{"type": "function", "function": described}],  # type: ignore[list-item]
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=120,
        temperature=0,
    )
    (call,) = chat.choices[0].message.tool_calls
    assert chat.choices[0].finish_reason == "tool_calls" and call.function.name == "visit"
    response: Any = client.responses.create(
        model="demo",
        input="Visit Paris.",
        tools=[{"type": "function", **described}],  # type: ignore[list-item]
        tool_choice={"type": "function", "name": "visit"},
        parallel_tool_calls=False,
        max_output_tokens=120,
        temperature=0,
    )
    message: Any = other.messages.create(
        model="demo",
        messages=asked,
        tools=[{"name": "visit", "description": "Goes to a place.", "input_schema": PLACE}],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        max_tokens=120,
        extra_body={"temperature": 0},
    )
    assert message.stop_reason == "tool_use"
    for arguments in (
        json.loads(call.function.arguments),
        json.loads(response.output[0].arguments),
        message.content[0].input,
    ):
        jsonschema.validate(arguments, PLACE)
