"""Bodies that JSON, a type or a range refuses: the field is named, in the server's own words."""

from __future__ import annotations

import gzip
import json
import re
from typing import Any

import pytest

from tests.server.running import Server

CHAT, TEXT, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
RESPONSES = "/v1/responses"
USER = {"role": "user", "content": "hi"}
LIBRARY = re.compile(r"Expected|`|\$|got |Error|truncated|malformed|recursion|NoneType|Traceback")
"""How msgspec and Python speak."""
OUTSIDE = ("NaN", "Infinity", "-Infinity", "1e400", "-1e400", "9" * 5000)


def refusal(server: Server, path: str, fields: dict[str, Any], literal: str) -> tuple[str, str]:
    """Message and param for a body in which `literal` stands where fields say "LITERAL"."""
    few = {} if path == RESPONSES else {"max_tokens": 2}
    body = json.dumps({"model": server.model, **few, **fields})
    answer = server.http.post(path, content=body.replace('"LITERAL"', literal))
    assert answer.status_code == 400, answer.text
    assert (answer.json().get("type") == "error") == (path == MESSAGES)
    error = answer.json()["error"]
    assert not LIBRARY.search(error["message"]), error["message"]
    assert len(answer.text) < 2000
    return error["message"], error.get("param", "")


@pytest.mark.parametrize("literal", OUTSIDE)
@pytest.mark.parametrize("field", ["max_tokens", "temperature", "seed", "top_k", "logit_bias.5"])
def test_numbers_that_json_does_not_have(server: Server, field: str, literal: str) -> None:
    outer, _, inner = field.partition(".")
    value = {inner: "LITERAL"} if inner else "LITERAL"
    message, param = refusal(server, CHAT, {"messages": [USER], outer: value}, literal)
    assert param == field and field in message and "finite number" in message
    if not inner and outer != "seed":
        message, _ = refusal(server, MESSAGES, {"messages": [USER], outer: value}, literal)
        assert field in message


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "LITERAL"}]}, "messages[0].content"),
        (CHAT, {"messages": [{**USER, "name": "LITERAL"}]}, "messages[0].name"),
        (CHAT, {"messages": [USER], "stop": ["LITERAL"]}, "stop[0]"),
        (CHAT, {"messages": [USER], "model": "LITERAL"}, "model"),
        (CHAT, {"messages": [USER], "user": "LITERAL"}, "user"),
        (
            CHAT,
            {"messages": [USER], "tools": [{"function": {"name": "LITERAL"}}]},
            "tools[0].function.name",
        ),
        (TEXT, {"prompt": "LITERAL"}, "prompt"),
        (MESSAGES, {"messages": [USER], "system": "LITERAL"}, "system"),
        (MESSAGES, {"messages": [USER], "stop_sequences": ["LITERAL"]}, "stop_sequences[0]"),
    ],
)
@pytest.mark.parametrize("literal", [r'"a\ud800"', r'"\udc00 b"', r'"\ud800\ud800"'])
def test_half_a_surrogate_pair_is_named(
    server: Server, path: str, fields: dict[str, Any], param: str, literal: str
) -> None:
    message, named = refusal(server, path, fields, literal)
    assert param in message and "surrogate" in message
    assert path == MESSAGES or named == param


@pytest.mark.parametrize(
    ("literal", "allowed"),
    [
        ("1e30", "a whole number"),
        ("1.5", "a whole number"),
        ("2.0", "a whole number"),
        ("true", "a whole number"),
        ('"5"', "a whole number"),
        ("[]", "a whole number"),
        ("{}", "a whole number"),
        ("-5", "from 1 to 2147483647"),
        ("0", "from 1 to 2147483647"),
        ("2147483648", "from 1 to 2147483647"),
        ("9" * 300, "from 1 to 2147483647"),
    ],
)
def test_what_is_no_count_is_told_what_is(server: Server, literal: str, allowed: str) -> None:
    for path in (CHAT, MESSAGES):
        message, _ = refusal(server, path, {"messages": [USER], "max_tokens": "LITERAL"}, literal)
        assert message.startswith("max_tokens is ") and allowed in message


@pytest.mark.parametrize(
    ("path", "fields", "words"),
    [
        (CHAT, {"messages": [USER], "temperature": "warm"}, ("temperature", '"warm"', "a number")),
        (CHAT, {"messages": [USER], "stop": 5}, ("stop", "text or a list")),
        (CHAT, {"messages": [USER], "stop": [5]}, ("stop[0]", "text")),
        (CHAT, {"messages": [USER], "stream": 1}, ("stream", "true or false")),
        (CHAT, {"messages": {"a": 1}}, ("messages", "a list")),
        (CHAT, {"messages": [5]}, ("messages[0]", "an object")),
        (
            CHAT,
            {"messages": [{"role": "x", "content": ""}]},
            (
                "messages[0].role",
                '"x"',
                "one of system, developer, user, assistant, tool, function",
            ),
        ),
        (CHAT, {"messages": [USER], "logit_bias": {"5": "x"}}, ("logit_bias", "a number")),
        (CHAT, {"messages": [USER], "logit_bias": {"9" * 5000: 1}}, ("logit_bias",)),
        (CHAT, {"messages": [USER], "logit_bias": {"\u0665": 1}}, ("logit_bias",)),
        (CHAT, {"messages": [USER], "verbosity": "x" * 9000}, ("verbosity",)),
        (CHAT, {"messages": [USER], "x" * 9000: 1}, ("xxx",)),
        (TEXT, {"prompt": [1.5]}, ("prompt[0]", "1.5")),
        (TEXT, {"prompt": 5}, ("prompt", "text or a list")),
        (MESSAGES, {"messages": [{"role": "user", "content": 5}]}, ("messages[0].content", "text")),
    ],
)
def test_a_value_of_another_kind(
    server: Server, path: str, fields: dict[str, Any], words: tuple[str, ...]
) -> None:
    message, _ = refusal(server, path, fields, "")
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "it is empty"),
        (b" \n ", "it is empty"),
        (b'{"model": "x"', "it ends too early"),
        (b'{\n "model": x}', "line 2, column 11"),
        (b"{'model': 'x'}", "line 1, column 2"),
        (b'{"model": "x"} y', "line 1, column 16"),
        (b'{"model": "\xe9"}', "not UTF-8"),
        ('{"model": "x"}'.encode("utf-16"), "not UTF-8"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"a": NaN, "b": ' + b"[" * 800 + b"]" * 800 + b"}", "a is NaN"),
    ],
)
def test_where_the_text_goes_wrong(server: Server, body: bytes, words: str) -> None:
    for path in (CHAT, MESSAGES):
        answer = server.http.post(path, content=body)
        message = answer.json()["error"]["message"]
        assert answer.status_code == 400 and words in message and not LIBRARY.search(message)


def test_a_byte_order_mark_is_no_fault(server: Server) -> None:
    body = json.dumps({"model": server.model, "prompt": "x", "max_tokens": 1}).encode()
    assert server.http.post(TEXT, content=b"\xef\xbb\xbf" + body).status_code == 200


def test_what_only_claims_to_be_gzip(server: Server) -> None:
    whole = gzip.compress(b"{}")
    for body in (b"{}", whole[:-4], whole + b"x"):
        answer = server.http.post(TEXT, content=body, headers={"Content-Encoding": "gzip"})
        message = answer.json()["error"]["message"]
        assert answer.status_code == 400 and "gzip" in message and not LIBRARY.search(message)


DEPTHS = (140, 320, *range(400, 1000, 40))
"""Up to Python's limit of recursion, which some step or other on a request's way reaches first."""


@pytest.mark.parametrize(
    ("path", "fields", "place"),
    [
        (
            CHAT,
            {"messages": [USER], "tools": [{"function": {"name": "f", "parameters": "LITERAL"}}]},
            "tools[0].function.parameters",
        ),
        (
            CHAT,
            {
                "messages": [USER],
                "response_format": {"type": "json_schema", "json_schema": {"schema": "LITERAL"}},
            },
            "response_format.json_schema.schema",
        ),
        (CHAT, {"messages": [{**USER, "content": "LITERAL"}]}, "messages[0].content"),
        (CHAT, {"messages": [USER], "chat_template_kwargs": "LITERAL"}, "chat_template_kwargs"),
        (
            MESSAGES,
            {"messages": [USER], "tools": [{"name": "f", "input_schema": "LITERAL"}]},
            "tools[0].input_schema",
        ),
        (
            RESPONSES,
            {"input": "x", "tools": [{"type": "function", "name": "f", "parameters": "LITERAL"}]},
            "tools[0].parameters",
        ),
        (TEXT, {"prompt": "LITERAL"}, "prompt"),
        ("/v1/tokenize", {"content": "LITERAL"}, "content"),
    ],
)
@pytest.mark.parametrize(("opening", "closing"), [('{"items":', "}"), ("[", "]")])
def test_what_is_nested_too_deeply(
    server: Server, path: str, fields: dict[str, Any], place: str, opening: str, closing: str
) -> None:
    for depth in DEPTHS:
        literal = opening * depth + "{}" + closing * depth
        message, param = refusal(server, path, fields, literal)
        assert "nested too deeply" in message
        if depth < 900:  # the text itself can be read
            assert message.startswith(place)
            assert path == MESSAGES or param.startswith(place)


def test_arguments_that_are_nested_too_deeply(server: Server) -> None:
    """A history is not refused for what a model wrote: what lies too deep is left out."""
    for depth in DEPTHS:
        text = '{"a":' * depth + "{}" + "}" * depth
        call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": text}}
        turn = {"role": "assistant", "content": "", "tool_calls": [call]}
        assert server.chat(messages=[turn, USER]).status_code == 200
        item = {"type": "function_call", "call_id": "a", "name": "f", "arguments": text}
        body = {"model": server.model, "input": [item], "max_output_tokens": 4}
        assert server.http.post(RESPONSES, json=body).status_code == 200


def test_schemas_may_be_as_deep_as_their_own_limit_says(server: Server) -> None:
    for depth, status in ((90, 200), (97, 400)):
        schema: dict[str, Any] = {}
        for _ in range(depth):
            schema = {"items": schema}
        form = {"type": "json_schema", "json_schema": {"name": "f", "schema": schema}}
        answer = server.chat(response_format=form)
        assert answer.status_code == status, answer.text
        assert ("deeper than 96 levels" in answer.text) == (status == 400)
