"""Messages in the form that chat templates read, whatever protocol they came by.

A message is a dict with `role` and `content` (text), and where present `reasoning_content`, `name`,
`tool_call_id` and `tool_calls` ([{id, type, function: {name, arguments: dict}}]).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from typing import Any

Message = dict[str, Any]

NOT_CONTINUED = "Only a last message of the assistant that makes no calls can be continued."


def tools_as_text(messages: list[Message], tools: list[dict[str, Any]]) -> list[Message]:
    """The tools described in the system message, for templates that know nothing of tools."""
    functions = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    told = (
        "These functions can be called, one JSON description a line:\n"
        f"<tools>\n{functions}\n</tools>\n"
        "To call one, write its name and its arguments as JSON between tags:\n"
        '<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call>'
    )
    if messages and messages[0]["role"] == "system":
        first = {**messages[0], "content": f"{messages[0]['content']}\n\n{told}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": told}, *messages]


def merge_turns(messages: list[Message]) -> list[Message]:
    """Neighbours of one role as one message, for templates that want roles to alternate."""
    merged: list[Message] = []
    for message in messages:
        last = merged[-1] if merged else None
        plain = not message.get("tool_calls") and message["role"] != "tool"
        if last and plain and not last.get("tool_calls") and last["role"] == message["role"]:
            merged[-1] = {**last, "content": last["content"] + "\n\n" + message["content"]}
        else:
            merged.append(message)
    return merged


def fold_system(messages: list[Message], *, keep_first: bool = False) -> list[Message]:
    """System messages put in front of the user's next message, for templates without that role;
    where none comes they are the user's last, but before an assistant's that may be continued.

    `keep_first`: but the one that the conversation begins with, for templates that know no other.
    """
    folded: list[Message] = []
    pending: list[str] = []
    merged = merge_turns(messages)
    for index, message in enumerate(merged):
        if is_instruction(message) and not (keep_first and index == 0):
            pending.append(message["content"])
        elif message["role"] == "user" and pending:
            folded.append({**message, "content": "\n\n".join([*pending, message["content"]])})
            pending = []
        elif message["role"] == "assistant" and pending and index == len(merged) - 1:
            folded += [_of_user(pending), message]
            pending = []
        else:
            folded.append(message)
    if pending:
        folded.append(_of_user(pending))
    return merge_turns(folded)


def _of_user(texts: list[str]) -> Message:
    return {"role": "user", "content": "\n\n".join(texts)}


def system_first(messages: list[Message]) -> list[Message]:
    """Only one system message, at the front, and later ones put in front of the user's next
    message, for templates that know no other."""
    return fold_system(messages, keep_first=True)


WAYS_TO_SAY: tuple[Callable[[list[Message]], list[Message]], ...] = (
    lambda messages: messages,
    merge_turns,
    system_first,
    fold_system,
)
"""The messages as they are, and as they can be said to templates that do not take them so."""


def may_go_on(message: Message) -> bool:
    """Whether an answer can go on within this message."""
    return message["role"] == "assistant" and not message.get("tool_calls")


def is_instruction(message: Message) -> bool:
    return message["role"] in ("system", "developer")


def with_marked_instructions(messages: list[Message]) -> tuple[list[Message], list[str]]:
    """The messages with a word of its own in place of each instruction, and the words.

    A word is by chance in no text and in no other word; being of digits, it stays what it is where
    a template changes letters.
    """
    words = [f"{secrets.randbits(128):039d}" for _ in messages]
    marked = [
        {**message, "content": word} if is_instruction(message) else message
        for message, word in zip(messages, words, strict=True)
    ]
    told = [
        word
        for message, word in zip(messages, words, strict=True)
        if is_instruction(message) and message["content"]
    ]
    return marked, told
