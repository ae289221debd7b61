"""Anthropic's protocol, by Anthropic's own client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx2 as httpx
import pytest

from tests.server.running import Server, frames
from tests.server.tiny_model import CONTEXT

USER: list[Any] = [{"role": "user", "content": "Say ok."}]


@pytest.fixture
def client(server: Server) -> Iterator[anthropic.Anthropic]:
    with (
        httpx.Client(trust_env=False) as http,
        anthropic.Anthropic(
            base_url=server.url, api_key="any", max_retries=0, http_client=http
        ) as made,
    ):
        yield made


def ask(client: anthropic.Anthropic, server: Server, **fields: Any) -> Any:
    # This client's newest version has no parameter for the temperature any more.
    extra = {"temperature": 0, **fields.pop("extra_body", {})}
    fields = {"messages": USER, "max_tokens": 8, "extra_body": extra, **fields}
    return client.messages.create(model=server.model, **fields)


def test_a_message(client: anthropic.Anthropic, server: Server) -> None:
    answer = ask(client, server)
    assert answer.type == "message" and answer.role == "assistant"
    assert [block.type for block in answer.content] == ["text"]
    assert answer.stop_reason in ("max_tokens", "end_turn") and answer.stop_sequence is None
    assert answer.usage.input_tokens > 0 and 0 < answer.usage.output_tokens <= 8


def test_a_stream_says_the_same_as_the_whole(client: anthropic.Anthropic, server: Server) -> None:
    fields: Any = {"max_tokens": 40, "extra_body": {"temperature": 0.0}}
    whole = ask(client, server, **fields)
    with client.messages.stream(model=server.model, messages=USER, **fields) as stream:
        text = "".join(stream.text_stream)
        final: Any = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == whole.stop_reason and final.usage == whole.usage


def test_the_order_of_events(server: Server) -> None:
    body = {"model": server.model, "messages": USER, "max_tokens": 3, "stream": True}
    with server.http.stream("POST", "/v1/messages?beta=true", json=body) as response:
        seen = [frame for frame in frames(response) if frame["type"] != "ping"]
    kinds = [frame["type"] for frame in seen]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) <= {"content_block_delta"}
    start, delta = seen[0]["message"], seen[-2]
    assert start["usage"]["input_tokens"] > 0 and start["content"] == []
    assert delta["usage"]["output_tokens"] <= 3 and delta["delta"]["stop_reason"]


def test_stop_sequences(client: anthropic.Anthropic, server: Server) -> None:
    text = ask(client, server, max_tokens=60).content[0].text
    stop = text[len(text) // 2 :][:2]
    cut = ask(client, server, max_tokens=60, stop_sequences=["never in there", stop])
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop)
    assert cut.content[0].text == text[: text.index(stop)]


def test_tokens_are_counted_as_they_are_used(client: anthropic.Anthropic, server: Server) -> None:
    for system in ("Be brief.", [{"type": "text", "text": "A."}, {"type": "text", "text": "B."}]):
        fields: Any = {"model": server.model, "messages": USER, "system": system}
        counted = client.messages.count_tokens(**fields).input_tokens
        assert counted == client.messages.create(**fields, max_tokens=1).usage.input_tokens
    bare = client.messages.count_tokens(model=server.model, messages=USER).input_tokens
    assert bare < counted


def test_a_call_cannot_be_continued(client: anthropic.Anthropic, server: Server) -> None:
    call = {"type": "tool_use", "id": "t1", "name": "read", "input": {}}
    begun: list[Any] = [*USER, {"role": "assistant", "content": [call]}]
    with pytest.raises(anthropic.BadRequestError, match="can be continued"):
        client.messages.create(model=server.model, messages=begun, max_tokens=3)
    # Agents count a history whatever it ends with.
    assert client.messages.count_tokens(model=server.model, messages=begun).input_tokens


def test_blocks_of_history_are_read(client: anthropic.Anthropic, server: Server) -> None:
    cached = {"cache_control": {"type": "ephemeral"}}
    messages: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "Read it.", **cached}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I should.", "signature": ""},
                {"type": "redacted_thinking", "data": "xx"},
                {"type": "text", "text": "Reading."},
                {"type": "tool_use", "id": "t1", "name": "read", "input": {"p": None}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "is_error": True},
                {"type": "tool_result", "tool_use_id": "t1", "content": [USER_TEXT]},
                {"type": "text", "text": "go on"},
            ],
        },
    ]
    answer = ask(
        client,
        server,
        messages=messages,
        metadata={"user_id": "u"},
        thinking={"type": "disabled"},
        tools=[],
        extra_body={"context_management": {"edits": []}, "output_config": {"effort": "none"}},
    )
    assert answer.usage.input_tokens > 40


USER_TEXT = {"type": "text", "text": "seven"}
ANSWER = {"type": "tool_result", "tool_use_id": "t9", "content": "seven"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"extra_body": {"temperature": 9}}, "temperature"),
        ({"messages": []}, "messages"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "image"),
        ({"extra_body": {"made_up": 1}}, "made_up"),
        ({"messages": [{"role": "user", "content": [{**USER_TEXT, "bold": 1}]}]}, "[0].bold"),
        ({"system": [{**USER_TEXT, "bold": 1}]}, "system[0].bold"),
        ({"messages": [{"role": "user", "content": [ANSWER]}]}, "'t9'"),
        ({"thinking": {"type": "disabled", "depth": 1}}, "thinking.depth"),
        ({"extra_body": {"max_tokens": "many"}}, "max_tokens"),
    ],
)
def test_what_is_refused_is_named(
    client: anthropic.Anthropic, server: Server, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(anthropic.BadRequestError) as raised:
        ask(client, server, **fields)
    body: Any = raised.value.body
    assert body["type"] == "error" and body["error"]["type"] == "invalid_request_error"
    assert words in body["error"]["message"]


def test_a_prompt_that_is_too_long(client: anthropic.Anthropic, server: Server) -> None:
    long: list[Any] = [{"role": "user", "content": "word " * CONTEXT}]
    with pytest.raises(anthropic.BadRequestError, match=rf"prompt is too long: \d+ .*{CONTEXT}"):
        ask(client, server, messages=long)
    counted = client.messages.count_tokens(model=server.model, messages=long)
    assert counted.input_tokens > CONTEXT


def test_another_model_is_not_found(client: anthropic.Anthropic, server: Server) -> None:
    with pytest.raises(anthropic.NotFoundError, match="not served here"):
        client.messages.create(model="other", messages=USER, max_tokens=1)


def test_the_model_list(client: anthropic.Anthropic, server: Server) -> None:
    assert [model.id for model in client.models.list()] == [server.model]
