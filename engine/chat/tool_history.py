"""History of tool use, in the form that a template takes.

Templates differ in where they look for a call's text and whether its arguments are an object or
JSON; one that does not find what it looks for passes over the call in silence.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from engine.chat.conversation import Message

Saying = Callable[[list[Message]], list[Message]]


def as_they_are(messages: list[Message]) -> list[Message]:
    return messages


def with_json(messages: list[Message]) -> list[Message]:
    """Arguments as JSON, as they come over the wire."""
    return [_calls_with(message, _with_json) for message in messages]


def apart(messages: list[Message]) -> list[Message]:
    """Calls in messages of their own that have no text at all, not even an empty one."""
    return [part for message in messages for part in _apart(message)]


def apart_with_json(messages: list[Message]) -> list[Message]:
    return with_json(apart(messages))


def as_text(messages: list[Message]) -> list[Message]:
    """History of tool use as plain text, for templates that know nothing of tools.

    The spelling is the one most models with tools were trained on.
    """
    return [_as_text(message) for message in messages]


def _as_text(message: Message) -> Message:
    if message["role"] == "tool":
        return {
            "role": "user",
            "content": f"<tool_response>\n{message['content']}\n</tool_response>",
        }
    if not message.get("tool_calls"):
        return message
    calls = [
        "<tool_call>\n"
        + json.dumps(
            {"name": call["function"]["name"], "arguments": call["function"]["arguments"]},
            ensure_ascii=False,
        )
        + "\n</tool_call>"
        for call in message["tool_calls"]
    ]
    plain = {key: value for key, value in message.items() if key != "tool_calls"}
    plain["content"] = "\n".join([*([message["content"]] if message["content"] else []), *calls])
    return plain


WAYS: tuple[Saying, ...] = (as_they_are, with_json, apart, apart_with_json)
"""The first that reaches the prompt is the template's; `as_text` does in any case."""
EXAMPLE: list[Message] = [
    {"role": "user", "content": "Look."},
    {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [
            {
                "id": "call00001",  # some templates want nine letters and digits
                "type": "function",
                "function": {"name": "look_around", "arguments": {"where": "at-the-sky"}},
            }
        ],
    },
    {"role": "tool", "content": "clouds-above", "tool_call_id": "call00001", "name": "look_around"},
]
"""What is rendered to see whether a way reaches the prompt."""
EXAMPLE_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "look_around",
            "description": "Looks.",
            "parameters": {
                "type": "object",
                "properties": {"where": {"type": "string", "description": "Where."}},
                "required": ["where"],
            },
        },
    }
]


def is_offered(prompt: str | None) -> bool:
    """Whether EXAMPLE_TOOLS are in a prompt."""
    return prompt is not None and "look_around" in prompt


def is_told(prompt: str | None) -> bool:
    """Whether EXAMPLE is in a prompt."""
    return prompt is not None and "at-the-sky" in prompt and "clouds-above" in prompt


def is_tool_use(message: Message) -> bool:
    return message["role"] == "tool" or bool(message.get("tool_calls"))


def _calls_with(message: Message, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Message:
    if not message.get("tool_calls"):
        return message
    calls = [{**call, "function": change(call["function"])} for call in message["tool_calls"]]
    return {**message, "tool_calls": calls}


def _with_json(function: dict[str, Any]) -> dict[str, Any]:
    return {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}


def _apart(message: Message) -> list[Message]:
    if not message.get("tool_calls"):
        return [message]
    text = {key: value for key, value in message.items() if key != "tool_calls"}
    if not message["content"]:
        return [{**message, "content": None}]
    calls = {"role": message["role"], "content": None, "tool_calls": message["tool_calls"]}
    return [text, calls]
