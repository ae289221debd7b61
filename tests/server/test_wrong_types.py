"""Tools, choices and formats with a wrong type anywhere: taken or refused, never a fault."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from engine.chat.parsers.families import family_named
from engine.chat.structured import compiled_beside, enforced_calls, structured_answer
from engine.errors import InvalidRequest
from engine.server import anthropic_tools, openai_tools, responses_tools
from engine.server.answer_formats import answer_format
from engine.server.tool_use import ToolUse

HERMES = family_named("hermes")
WRONG: list[Any] = [None, "x", "", "grammar", 7, 1.5, True, [], ["x"], [[]], {}, {"type": []}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": "string", "format": "date", "pattern": "a", "maxLength": 3},
        "b": {"type": "integer", "minimum": 1, "nullable": True},
        "c": {"anyOf": [{"type": ["array", "null"], "items": {"enum": [1]}}]},
        "d": {"patternProperties": {"a": {"const": 1}}, "additionalProperties": False},
        "e": {"allOf": [{"$ref": "#/$defs/x"}]},
    },
    "required": ["a"],
    "$defs": {"x": {"type": "number", "exclusiveMaximum": 2}},
}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /a/"}
PATTERN = {"type": "grammar", "syntax": "regex", "definition": "a"}
NAMED = {"type": "function", "name": "n__f"}
FUNCTION = {"name": "f", "description": "d", "strict": True, "parameters": SCHEMA}
CHAT_TOOL = {"type": "function", "function": FUNCTION}

Body = dict[str, Any]


def of_responses(body: Body) -> ToolUse:
    return responses_tools.response_tools(body["tools"], body["choice"], several=True).use


def of_chat(body: Body) -> ToolUse:
    return openai_tools.tool_use_of(body["tools"], body["choice"], several=True)


def of_messages(body: Body) -> ToolUse:
    return anthropic_tools.tool_use_of(body["tools"], body["choice"])


def custom(wanted: Any) -> Body:
    return {"type": "custom", "name": "f", "description": "d", "format": wanted}


TOOLS: list[tuple[Callable[[Body], ToolUse], list[Body], Any]] = [
    (of_responses, [custom(GRAMMAR)], "required"),
    (of_responses, [custom(PATTERN)], {"type": "custom", "name": "f", "namespace": ""}),
    (
        of_responses,
        [{"type": "namespace", "name": "n", "tools": [{"type": "function", **FUNCTION}]}],
        {"type": "allowed_tools", "mode": "required", "tools": [NAMED]},
    ),
    (of_chat, [CHAT_TOOL], {"type": "function", "function": {"name": "f"}}),
    (
        of_chat,
        [CHAT_TOOL],
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [CHAT_TOOL]}},
    ),
    (
        of_messages,
        [{"type": "custom", "name": "f", "strict": True, "input_schema": SCHEMA}],
        {"type": "tool", "name": "f", "disable_parallel_tool_use": False},
    ),
]


def places(value: Any, so_far: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield so_far
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(item, (*so_far, key))


def changed(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return new
    other = copy.copy(value)
    other[place[0]] = changed(value[place[0]], place[1:], new)
    return other


@pytest.mark.parametrize(("read", "tools", "choice"), TOOLS)
def test_tools(read: Callable[[Body], ToolUse], tools: list[Body], choice: Any) -> None:
    """Records have seen to it that these are objects in a list, and a text or an object."""
    body = {"tools": tools, "choice": choice}
    taken = refused = 0
    for place in places(body):
        if place in ((), ("tools",), ("tools", 0), ("choice",)):
            continue
        for new in WRONG:
            try:
                use = read(changed(body, place, new))
                compiled_beside(use.callable, {}, enforced=use.enforced)
                if use.callable:
                    enforced_calls(HERMES, use.callable, {}, "none", several=True)
                taken += 1
            except InvalidRequest as error:
                assert error.param, (place, new)
                refused += 1
    assert taken and refused


def test_formats() -> None:
    body = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    for whole in (body, {"type": "json_schema", "schema": SCHEMA}, {"type": "regex", "regex": "a"}):
        for place in places(whole):
            for new in WRONG if place else ():
                try:
                    wanted = answer_format(changed(whole, place, new))
                    if wanted is not None:
                        structured_answer(HERMES, wanted, {}, "none")
                except InvalidRequest as error:
                    assert error.param, (place, new)
