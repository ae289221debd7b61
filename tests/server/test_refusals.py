"""Bad requests: each is refused quickly, in the protocol's shape, naming what is wrong."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ModelFilesError
from engine.server.http import anthropic_error, openai_error
from tests.server.running import Server, running
from tests.server.tiny_model import CONTEXT

USER = {"role": "user", "content": "hi"}
CHAT, TEXT, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
PART, PART_AT = {"type": "text", "text": "hi"}, "messages[0].content[0]"
TOLD = {"role": "tool", "tool_call_id": "1", "content": "seven"}
KWARGS = "chat_template_kwargs"
THINKING = KWARGS + ".enable_thinking"

BEGUN = [USER, {"role": "assistant", "content": "The"}]
GENERATED, CONTINUE = {"add_generation_prompt": True}, "continue_final_message"
MUST_CALL = {"tools": [TOOL], "tool_choice": "required"}


def calling(**fields: Any) -> dict[str, Any]:
    """An assistant's turn that calls a tool."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return {"role": "assistant", "content": None, "tool_calls": [{**call, **fields}]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "oracle", "content": "x"}]}, "messages[0].role"),
        ({"messages": [USER, {"role": "user", "content": 7}]}, "messages[1].content"),
        ({"messages": [{**USER, "made_up": 1}]}, "messages[0].made_up"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0]",
        ),
        ({"messages": [{"role": "user", "content": [{**PART, "bold": 1}]}]}, PART_AT + ".bold"),
        ({"messages": [calling(colour="red"), USER]}, "messages[0].tool_calls[0].colour"),
        (
            {"messages": [calling(function={"name": "f", "strict": True}), USER]},
            "messages[0].tool_calls[0].function.strict",
        ),
        ({"messages": [calling(), {**TOLD, "tool_call_id": "other"}]}, "messages"),
        ({"messages": [TOLD, USER]}, "messages"),
        ({"messages": BEGUN, "continue_final_message": True, **GENERATED}, CONTINUE),
        ({"continue_final_message": True}, CONTINUE),
        ({"messages": [USER, calling()], "continue_final_message": True}, CONTINUE),
        ({"messages": BEGUN, "continue_final_message": True, "regex": "a"}, CONTINUE),
        ({"messages": BEGUN, "continue_final_message": True, **MUST_CALL}, CONTINUE),
        ({"response_format": {"type": "text", "schema": {}}}, "response_format.schema"),
        ({"chat_template_kwargs": {"made_up": 1}}, "chat_template_kwargs.made_up"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, THINKING),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"temperature": "warm"}, "temperature"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"n": 0, "stream": True}, "n"),
        ({"stop": [""]}, "stop"),
        ({"stop": 7}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage"),
        ({"logit_bias": {"99999999": 5}}, "logit_bias"),
        ({"logit_bias": {"-1": 5}}, "logit_bias"),
        ({"logit_bias": {"5": 500}}, "logit_bias"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"response_format": {"type": "poem"}}, "response_format"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"reasoning_effort": "enormous"}, "reasoning_effort"),
        ({"thinking_budget": -1}, "thinking_budget"),
        ({"store": True}, "store"),
        ({"made_up": 1}, "made_up"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"seed": "x"}, "seed"),
    ],
)
def test_chat_names_the_field(server: Server, fields: dict[str, Any], param: str) -> None:
    answer = server.chat(**fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param and error["type"] == "invalid_request_error"
    assert error["code"] == "invalid_request" and error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": BEGUN, "continue_final_message": True, **GENERATED}, CONTINUE),
        ({"messages": [USER], "continue_final_message": True}, CONTINUE),
        ({"messages": [USER, calling()], "continue_final_message": True}, CONTINUE),
        ({"messages": [USER], "chat_template_kwargs": {"made_up": 1}}, KWARGS + ".made_up"),
        ({"messages": [USER], "chat_template_kwargs": {"enable_thinking": True}}, THINKING),
        ({"messages": [USER], "chat_template_kwargs": {"messages": []}}, KWARGS),
    ],
)
def test_tokenize_refuses_what_chat_refuses(
    server: Server, fields: dict[str, Any], param: str
) -> None:
    answer, chat = server.http.post("/v1/tokenize", json=fields), server.chat(**fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert answer.json() == chat.json()


def test_what_cannot_change_an_answer_is_taken(server: Server) -> None:
    part = {**PART, "cache_control": {"type": "ephemeral"}, "annotations": []}
    messages = [{"role": "user", "name": "me", "content": [part]}, calling(index=0), TOLD]
    for fields in (
        {"messages": messages},
        {"stream": True, "stream_options": {"include_usage": None}},
        {"response_format": {"type": "text", "schema": None}},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "high"},
        {"reasoning_effort": "none", "thinking_budget": 4096},
        {"messages": BEGUN},
        {"messages": BEGUN, "add_generation_prompt": False},
    ):
        answer = server.chat(**fields)
        assert answer.status_code == 200, answer.text
    completion = {"model": server.model, "prompt": "x", "max_tokens": 1, "stream": True}
    options = {"stream_options": {"include_usage": None}}
    assert server.http.post(TEXT, json={**completion, **options}).status_code == 200


def test_tools_that_must_not_be_called_change_nothing(server: Server) -> None:
    plain = server.chat(temperature=0).json()
    unused = server.chat(temperature=0, tools=[TOOL], tool_choice="none").json()
    assert plain["choices"] == unused["choices"] and plain["usage"] == unused["usage"]


def test_nulls_are_absent(server: Server) -> None:
    names = (
        "response_format stop tools tool_choice seed logprobs stream_options user n top_p made_up"
    )
    nulls: dict[str, Any] = dict.fromkeys(names.split())
    assert server.chat(**nulls).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": [1, "b"]}, "prompt"),
        ({"prompt": [99999999]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({}, "prompt"),
        ({"prompt": "x", "suffix": "y"}, "suffix"),
        ({"prompt": "x", "best_of": 3}, "best_of"),
    ],
)
def test_completions_name_the_field(server: Server, fields: dict[str, Any], param: str) -> None:
    answer = server.http.post(TEXT, json={"model": server.model, **fields})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text


@pytest.mark.parametrize("path", [CHAT, TEXT, MESSAGES, "/v1/messages/count_tokens"])
@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'{"model": "x",}', b"[]", b'"x"', b"\xff\xfe", b"[" * 5000, b'{"x": "\\ud800"}'],
)
def test_what_is_not_a_json_object(server: Server, path: str, body: bytes) -> None:
    answer = server.http.post(path, content=body)
    assert answer.status_code == 400 and "JSON" in answer.json()["error"]["message"]
    assert (answer.json().get("type") == "error") == path.startswith(MESSAGES)


def test_a_missing_or_other_model(server: Server) -> None:
    answer = server.http.post(CHAT, json={"messages": [USER]})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "model"
    answer = server.http.post(CHAT, json={"model": "gpt-9", "messages": [USER]})
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "model_not_found"
    assert server.model in answer.json()["error"]["message"]


def test_a_prompt_longer_than_the_context(server: Server) -> None:
    exact = server.http.post(TEXT, json={"model": server.model, "prompt": [5] * CONTEXT}).json()
    assert exact["error"]["code"] == "context_length_exceeded"
    assert exact["error"]["message"].count(str(CONTEXT)) == 2
    for stream in (False, True):
        answer = server.chat("word " * CONTEXT, stream=stream)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "context_length_exceeded"
        assert str(CONTEXT) in answer.json()["error"]["message"]


def test_ten_megabytes_are_refused_quickly(server: Server) -> None:
    began = time.monotonic()
    answer = server.chat("word " * 2_000_000)
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert time.monotonic() - began < 5
    assert server.chat().status_code == 200


def test_a_body_beyond_the_limit(server: Server) -> None:
    answer = server.http.post(CHAT, content=b" " * ((32 << 20) + 1))
    assert answer.status_code == 413 and "32 MiB" in answer.json()["error"]["message"]
    chunked = server.http.post(CHAT, content=(b" " * (1 << 20) for _ in range(33)))
    assert chunked.status_code == 413
    assert server.chat().status_code == 200


@pytest.mark.parametrize(
    ("message", "hint", "said"),
    [
        ("a.json is not there", "Fetch it.", "a.json is not there. Fetch it."),
        ("a.json is not there.", "Fetch it.", "a.json is not there. Fetch it."),
        ("a.json is not there", "", "a.json is not there"),
    ],
)
def test_a_message_and_its_hint_are_sentences(message: str, hint: str, said: str) -> None:
    error = ModelFilesError(message, hint=hint)
    assert openai_error(error)["error"]["message"] == said
    assert anthropic_error(error)["error"]["message"] == said


def test_unknown_paths_and_methods(server: Server) -> None:
    answer = server.http.post("/v1/v1/chat/completions", json={})
    assert (
        answer.status_code == 404 and "/v1/v1/chat/completions" in answer.json()["error"]["message"]
    )
    answer = server.http.post("/chat/completions", json={})
    assert answer.status_code == 404 and "/v1" in answer.json()["error"]["message"]
    assert server.http.post("/v1/messages/nope").json()["type"] == "error"
    answer = server.http.get(CHAT)
    assert answer.status_code == 405 and answer.headers["allow"] == "POST"
    assert "error" in answer.json()
    head = server.http.head("/v1/models")
    assert head.status_code == 200 and head.content == b""


def test_control_tokens_in_a_message_stay_text(server: Server) -> None:
    def tokens(content: str) -> int:
        return int(server.chat(content).json()["usage"]["prompt_tokens"])

    assert tokens("<|im_end|>" * 10) - tokens("") >= 50
    assert tokens("<|im_end|>") > tokens("")


def test_a_text_that_is_not_unicode_is_refused_before_the_stream(server: Server) -> None:
    body = json.dumps({"model": server.model, "messages": [USER], "stream": True})
    answer = server.http.post(CHAT, content=body.replace("hi", "cut \\ude00 here"))
    assert answer.status_code == 400 and "Error" not in answer.text


ANTHROPIC = ({"anthropic-version": "2023-06-01"}, {"x-api-key": "any"})
OPENAI: tuple[dict[str, str], ...] = (
    {},
    {"authorization": "Bearer any"},
    {"authorization": "Bearer any", "x-api-key": "any"},
)
SHARED = [
    ("GET", "/v1/models/claude"),
    ("GET", "/v1/models/"),
    ("POST", "/v1/models"),
    ("POST", "/v1/v1/messages"),
    ("POST", "/messages"),
    ("GET", "/v1/files"),
]


@pytest.mark.parametrize(("method", "path"), SHARED)
def test_paths_of_no_protocol_answer_in_the_client_s(
    server: Server, method: str, path: str
) -> None:
    for headers in ANTHROPIC:
        answer = server.http.request(method, path, headers=headers)
        assert answer.status_code in (404, 405)
        assert answer.json()["type"] == "error" and answer.json()["error"]["type"]
    for headers in OPENAI:
        answer = server.http.request(method, path, headers=headers)
        assert "type" not in answer.json() and answer.json()["error"]["code"]


def test_paths_of_a_protocol_answer_in_its_own_shape(server: Server) -> None:
    for headers in (*ANTHROPIC, *OPENAI):
        for path in (CHAT, TEXT, "/v1/responses", "/v1/tokenize"):
            assert "type" not in server.http.post(path, json={}, headers=headers).json()
        assert server.http.post(MESSAGES, json={}, headers=headers).json()["type"] == "error"


def test_a_key_that_is_wrong_is_told_in_the_client_s_shape(
    tiny_model: Path, tmp_path: Path
) -> None:
    with running(tiny_model, tmp_path, "--api-key", "secret", ready=False) as server:
        answer = server.http.get("/v1/models", headers={"x-api-key": "other"})
        assert answer.status_code == 401
        assert answer.json()["error"]["type"] == "authentication_error"
        assert answer.json()["type"] == "error"
        bearer = server.http.get("/v1/models", headers={"authorization": "Bearer other"})
        assert bearer.json()["error"]["code"] == "invalid_api_key"


def test_what_is_no_response_is_not_found(server: Server) -> None:
    assert server.http.post("/v1/responses/compact", json={}).status_code == 404
    answer = server.http.post("/v1/responses/resp_1", json={})
    assert answer.status_code == 405
    assert {*answer.headers["allow"].split(", ")} == {"DELETE", "GET", "HEAD"}


def test_an_empty_text_is_not_an_absent_one(server: Server) -> None:
    turns = {"messages": [USER]}
    for path, fields, param in (
        (CHAT, {**turns, "regex": ""}, "regex"),
        (CHAT, {**turns, "grammar": ""}, "grammar"),
        (TEXT, {"prompt": "x", "regex": ""}, "regex"),
        (CHAT, {**turns, "response_format": {"type": "regex", "pattern": ""}}, "response_format"),
        (CHAT, {**turns, "response_format": {"type": "grammar"}}, "response_format"),
        (CHAT, {**turns, "response_format": {}}, "response_format"),
        (CHAT, {**turns, "reasoning_effort": ""}, "reasoning_effort"),
        ("/v1/responses", {"input": "hi", "reasoning": {"effort": ""}}, "reasoning.effort"),
        ("/v1/responses", {"input": "hi", "previous_response_id": ""}, "previous_response_id"),
        ("/v1/responses", {"input": "hi", "text": {"format": {}}}, "text.format"),
        (MESSAGES, {**turns, "max_tokens": 1, "output_config": {"effort": ""}}, ""),
        (MESSAGES, {**turns, "max_tokens": 1, "output_format": {}}, ""),
    ):
        answer = server.http.post(path, json={"model": server.model, **fields})
        assert answer.status_code == 400, (path, fields, answer.text)
        assert answer.json()["error"].get("param", "") == param, (path, fields)
    for name in ("regex", "grammar", "reasoning_effort", "response_format"):
        assert server.chat(**{name: None}).status_code == 200


FLAT = {"type": "function", "name": "f", "parameters": {}}
PYTHON = re.compile(r"\bNone\b|\bTrue\b|\bFalse\b|[\[{(]'|\bdict\b|\bstr\b")
SPOKEN: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"response_format": {}}, "response_format.type is missing"),
    (CHAT, {"response_format": {"type": {"a": 1}}}, "response_format.type is an object"),
    (CHAT, {"response_format": {"type": "regex"}}, "response_format.regex is missing"),
    (CHAT, {"tools": [{}]}, "tools[0].type is missing"),
    (CHAT, {"tools": [{"type": ["function"]}]}, "tools[0].type is a list"),
    (CHAT, {"tools": [FLAT]}, "tools[0].function is missing"),
    (CHAT, {"tools": [TOOL], "tool_choice": {"type": "function"}}, "function.name is missing"),
    (CHAT, {"tools": [TOOL], "tool_choice": {"type": "x"}}, 'tool_choice.type is "x"'),
    (CHAT, {"tools": [TOOL], "tool_choice": {}}, "tool_choice.type is missing"),
    (CHAT, {"tools": [TOOL], "tool_choice": "x"}, 'tool_choice is "x"'),
    (CHAT, {"modalities": ["audio"]}, 'modalities must be ["text"]'),
    (CHAT, {"audio": {"voice": "x"}}, "audio"),
    (CHAT, {"messages": [{"role": "user", "content": [{}]}]}, "content[0].type is missing"),
    (CHAT, {"thinking": {"type": "adaptive"}}, "one of auto, disabled, enabled"),
    (MESSAGES, {"thinking": {"type": "auto"}}, "one of adaptive, disabled, enabled"),
    (MESSAGES, {"tools": [{"name": "f"}], "tool_choice": {}}, "tool_choice.type is missing"),
    (MESSAGES, {"tools": [{"type": {}}]}, "tools[0].type is an object"),
    (MESSAGES, {"messages": [{"role": "user", "content": [{}]}]}, "content[0].type is missing"),
    (MESSAGES, {"messages": [{"role": "x", "content": ""}]}, "one of user, assistant, system"),
    (MESSAGES, {"output_format": {"type": None}}, "output_format.type is missing"),
    ("/v1/responses", {"input": [{"role": {}}]}, "input[0].role is an object"),
    ("/v1/responses", {"input": [{"type": []}]}, "input[0].type is a list"),
    ("/v1/responses", {"input": [{"type": "item_reference"}]}, "id is missing"),
    ("/v1/responses", {"tools": [{}]}, "tools[0].type is missing"),
    ("/v1/responses", {"tools": [FLAT], "tool_choice": {"type": "custom"}}, "name is missing"),
    ("/v1/responses", {"tools": [FLAT], "tool_choice": {}}, "tool_choice.type is missing"),
    ("/v1/responses", {"truncation": "x"}, "one of auto, disabled"),
    ("/v1/responses", {"text": {"format": {"type": None}}}, "text.format.type is missing"),
]


@pytest.mark.parametrize(("path", "fields", "said"), SPOKEN, ids=[each[2] for each in SPOKEN])
def test_refusals_speak_of_json(
    server: Server, path: str, fields: dict[str, Any], said: str
) -> None:
    asked: dict[str, Any] = {"messages": [USER]} if path != "/v1/responses" else {"input": "hi"}
    limit = {"max_tokens": 1} if path == MESSAGES else {}
    answer = server.http.post(path, json={"model": server.model, **asked, **limit, **fields})
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert said in message and not PYTHON.search(message), message
