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
    """The messages. Raises InvalidRequest where a tool answers a call that nobody has made before.
    One that does not say which answers a call without an id."""
    made: set[str] = set()
    for message in messages:
        made |= {str(call["id"]) for call in message.get("tool_calls", [])}
        answered = message.get("tool_call_id", "")
        if message["role"] == "tool" and answered not in made:
            which = f"the call {answered!r}" if answered else "a call without an id"
            raise InvalidRequest(
                f"A tool answers {which}, which no message before it makes.", param="messages"
            )
    return messages
