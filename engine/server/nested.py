"""What is nested in messages and is no record: parts, blocks, and calls that tools answer."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from engine.chat.conversation import Message
from engine.errors import InvalidRequest
from engine.server.bodies import unsupported

HARMLESS = frozenset({"type", "cache_control", "citations", "annotations", "logprobs", "parsed"})
"""Of every part: its type, a hint about caching, what an answer's text came with, and what a client
has read it as."""


def refuse_unknown(value: dict[str, Any], where: str, known: Collection[str]) -> None:
    """Raises InvalidRequest naming a field that is neither known nor harmless. Null is absent."""
    for name, item in value.items():
        if item is not None and name not in known and name not in HARMLESS:
            raise unsupported(f"{where}.{name}")


def refuse_held(*, continued: bool, held: bool, param: str) -> None:
    """Raises InvalidRequest for an answer that goes on from a beginning of the client's own and is
    held to a format or to calls: the beginning was not."""
    if continued and held:
        raise InvalidRequest(
            "An answer that is continued cannot be held to a format or to calls.", param=param
        )


def answering(messages: list[Message]) -> list[Message]:
    """The messages, each tool's answer with the id of its call, where that has one.

    An answer without an id is to the open call of its name, or else to the only open one; calls
    without ids are answered in their order. Open are calls that the newest turn made and nothing
    has answered. Raises InvalidRequest where no call before it, or more than one, can be meant.
    """
    made: set[str] = set()
    still_open: list[dict[str, Any]] = []
    role = ""
    for message in messages:
        if calls := message.get("tool_calls", []):
            made |= {str(call["id"]) for call in calls}
            still_open = [*(still_open if role == "assistant" else ()), *calls]
        role = message["role"]
        if role != "tool":
            continue
        if answered := message.get("tool_call_id", ""):
            if answered not in made:
                raise InvalidRequest(
                    f"A tool answers the call {answered!r}, which no message before it makes.",
                    param="messages",
                )
            still_open = [call for call in still_open if call["id"] != answered]
        else:
            call = _meant(still_open, message.get("name", ""))
            still_open = [each for each in still_open if each is not call]
            if call["id"]:
                message["tool_call_id"] = call["id"]
    return messages


def _meant(still_open: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """The call that an answer without an id is to. Raises InvalidRequest."""
    named = [call for call in still_open if call["function"]["name"] == name]
    calls = named or still_open
    if not calls:
        raise InvalidRequest(
            "A tool answers without a tool_call_id, and no call is open.", param="messages"
        )
    if len(calls) > 1 and any(call["id"] for call in calls):
        raise InvalidRequest(
            f"A tool answers without a tool_call_id, and {len(calls)} calls can be meant.",
            hint="Give the answer the id of its call.",
            param="messages",
        )
    return calls[0]
