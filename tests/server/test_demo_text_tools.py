"""Tools that take plain text in a format, and schemas of tools, by the demo model: a call that must
be made fits, and what cannot be enforced is refused whether one must be made or not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.running import Server, frames, running

RESPONSES = "/v1/responses"
FORCED = {"type": "custom", "name": "edit"}
CHOICES = ("auto", "required", FORCED, {"type": "allowed_tools", "mode": "auto", "tools": [FORCED]})
LINES = r"""
start: line~2..3
line: "\"" /[a-c\\]{1,4}/ "\"\n"
"""
# A format, and an expression of all that it allows.
FORMATS = [
    ("lark", 'start: "a"~1..5 END\nEND: ";"', r"a{1,5};"),
    ("lark", LINES, r'(?:"[a-c\\]{1,4}"\n){2,3}'),
    ("regex", "[0-9]{3}", r"[0-9]{3}"),
    ("regex", r'x\n"[a-z]{2}\\', r'x\n"[a-z]{2}\\'),
]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running("demo", tmp_path_factory.mktemp("home"), "--device", "cpu") as started:
        yield started


def asking(tools: list[Any], choice: Any, **fields: Any) -> dict[str, Any]:
    sent = {"model": "demo", "input": "hi", "tools": tools, "tool_choice": choice}
    return {**sent, "max_output_tokens": 200, **fields}


def edit(**format_: Any) -> dict[str, Any]:
    return {"type": "custom", "name": "edit", "format": {"type": "grammar", **format_}}


@pytest.mark.parametrize(("syntax", "definition", "fits"), FORMATS)
def test_the_input_of_a_forced_call_fits(
    demo: Server, syntax: str, definition: str, fits: str
) -> None:
    tools = [edit(syntax=syntax, definition=definition)]
    for seed in range(3):
        whole = demo.http.post(RESPONSES, json=asking(tools, FORCED, seed=seed)).json()
        (call,) = whole["output"]
        assert (call["type"], call["name"], call["status"]) == (
            "custom_tool_call",
            "edit",
            "completed",
        )
        assert re.fullmatch(fits, call["input"]), call
    body = asking(tools, "required", stream=True, parallel_tool_calls=False)
    with demo.http.stream("POST", RESPONSES, json=body) as answer:
        *_, last = frames(answer)
    (call,) = last["response"]["output"]
    assert re.fullmatch(fits, call["input"]), call


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize(
    ("format_", "place", "why"),
    [
        ({"syntax": "lark", "definition": "start: zz"}, ".definition", "zz"),
        ({"syntax": "regex", "definition": "(a"}, ".definition", "regular expression"),
        ({"syntax": "foo", "definition": "a"}, ".syntax", "lark or regex"),
        ({"definition": "a"}, ".syntax", "lark or regex"),
        ({"syntax": "lark"}, ".definition", "must be a grammar"),
        ({"syntax": "lark", "definition": " "}, ".definition", "must be a grammar"),
        ({"type": "poem"}, "", "text or grammar"),
    ],
)
def test_a_format_that_cannot_be_enforced_is_refused(
    demo: Server, choice: Any, format_: dict[str, Any], place: str, why: str
) -> None:
    spaced = {"type": "namespace", "name": "crew", "tools": [edit(**format_)]}
    for tools, at in (([edit(**format_)], "tools[0]"), ([spaced], "tools[0].tools[0]")):
        if tools == [spaced] and isinstance(choice, dict):
            continue  # it names the tool without its namespace
        answer = demo.http.post(RESPONSES, json=asking(tools, choice))
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["param"] == f"{at}.format{place}" and why in error["message"]


BROKEN = {"type": "object", "properties": {"a": {"$ref": "#/zz"}}}
UNKNOWN = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
TURNS = [{"role": "user", "content": "hi"}]


def asked(
    server: Server, schema: Any, *, strict: bool, required: bool
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The answers to a request with a tool of this schema, by each protocol."""
    named = {"name": "f", "strict": strict}
    mode = "required" if required else "auto"
    function = {"type": "function", "function": {**named, "parameters": schema}}
    for path, fields in (
        ("/v1/chat/completions", {"messages": TURNS, "tools": [function], "tool_choice": mode}),
        (RESPONSES, asking([{"type": "function", **named, "parameters": schema}], mode)),
        (
            "/v1/messages",
            {
                "messages": TURNS,
                "max_tokens": 4,
                "tools": [{**named, "input_schema": schema}],
                "tool_choice": {"type": "any" if required else "auto"},
            },
        ),
    ):
        limits = {} if "max_output_tokens" in fields else {"max_tokens": 4}
        answer = server.http.post(path, json={"model": "demo", **limits, **fields})
        yield answer.status_code, answer.json()


@pytest.mark.parametrize("required", [False, True])
def test_a_strict_schema_is_enforceable_or_refused(demo: Server, required: bool) -> None:
    for schema, why in ((BROKEN, "at /zz: "), (UNKNOWN, "at /properties/a: ")):
        for status, content in asked(demo, schema, strict=True, required=required):
            assert status == 400 and why in content["error"]["message"], content
            assert "tool 'f'" in content["error"]["message"]
    fine = {"type": "object", "properties": {"a": {"enum": ["x"]}}}
    for status, content in asked(demo, fine, strict=True, required=required):
        assert status == 200, content
    for status, content in asked(demo, UNKNOWN, strict=False, required=required):
        assert status == 200, content
