"""The chat completion stream of the OpenAI protocol, as far as the chat page needs it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from app.core.conversation import ChatSettings
from engine.errors import told

END_OF_STREAM = "[DONE]"
MOST_CALLS = 1_000
"""In one answer."""


class CallPiece(msgspec.Struct, frozen=True):
    """A piece of a tool call, by its place among the answer's calls."""

    index: int
    name: str = ""
    arguments: str = ""


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """One event of the stream, reduced to what is shown."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[CallPiece, ...] = ()
    finish_reason: str = ""
    completion_tokens: int = 0
    error: str = ""


def request_body(
    model: str,
    messages: list[dict[str, str]],
    settings: ChatSettings | None = None,
    *,
    go_on: bool = False,
) -> bytes:
    """`go_on`: the last message is the answer's beginning, and what follows it is wanted."""
    settings = settings or ChatSettings()
    asked = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "max_tokens": settings.max_tokens,
        "reasoning_effort": settings.effort or None,
        "continue_final_message": go_on or None,
    }
    return msgspec.json.encode(
        {
            "model": model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            **{name: value for name, value in asked.items() if value is not None},
        }
    )


def parse_event(data: str) -> Delta:
    """Raises ValueError on an event that is not of this protocol."""
    try:
        event = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise ValueError(f"the engine's stream is broken: {error}") from error
    if not isinstance(event, dict):
        raise ValueError("the engine's stream is broken: an event is not an object")
    if error_record := event.get("error"):
        return Delta(error=_error_sentence(error_record))
    choice = _first(event.get("choices"))
    delta = choice.get("delta") or {}
    usage = event.get("usage") or {}
    return Delta(
        text=delta.get("content") or "",
        reasoning=delta.get("reasoning_content") or delta.get("reasoning") or "",
        calls=tuple(_call_pieces(delta.get("tool_calls"))),
        finish_reason=choice.get("finish_reason") or "",
        completion_tokens=usage.get("completion_tokens") or 0,
    )


class _Model(msgspec.Struct):
    reasoning_efforts: tuple[str, ...] = ()


class _Models(msgspec.Struct):
    data: list[_Model]


def parse_efforts(body: bytes) -> tuple[str, ...]:
    """How much the served model can be told to think, of `/v1/models`; () where that is not told,
    as by servers of other versions."""
    try:
        data = msgspec.json.decode(body, type=_Models).data
    except msgspec.DecodeError:
        return ()
    return data[0].reasoning_efforts if data else ()


def error_message(body: bytes, fallback: str) -> str:
    """The sentence in an error answer of the server, or `fallback` where it has none."""
    try:
        record = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return fallback
    if isinstance(record, dict) and record.get("error"):
        return _error_sentence(record["error"]) or fallback
    return fallback


def _call_pieces(calls: Any) -> Iterator[CallPiece]:
    for at, call in enumerate(calls if isinstance(calls, list) else []):
        if isinstance(call, dict):
            index, function = call.get("index", at), call.get("function") or {}
            if not isinstance(index, int) or not 0 <= index < MOST_CALLS:
                raise ValueError("the engine's stream is broken: a call has a wrong index")
            yield CallPiece(index, function.get("name") or "", function.get("arguments") or "")


def _first(choices: Any) -> dict[str, Any]:
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return choices[0]
    return {}


def _error_sentence(record: Any) -> str:
    if isinstance(record, dict):
        message = str(
            record.get("message") or record.get("code") or "The engine reported an error."
        )
        hint = str(record.get("hint") or "")
        return told(message, hint)
    return str(record)
