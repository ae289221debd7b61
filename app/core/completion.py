"""The chat completion stream of the OpenAI protocol, as far as the chat page needs it."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.errors import told

END_OF_STREAM = "[DONE]"


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """One event of the stream, reduced to what is shown."""

    text: str = ""
    reasoning: str = ""
    finish_reason: str = ""
    completion_tokens: int = 0
    error: str = ""


def request_body(model: str, messages: list[dict[str, str]]) -> bytes:
    return msgspec.json.encode(
        {
            "model": model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
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
        finish_reason=choice.get("finish_reason") or "",
        completion_tokens=usage.get("completion_tokens") or 0,
    )


def error_message(body: bytes, fallback: str) -> str:
    """The sentence in an error answer of the server, or `fallback` where it has none."""
    try:
        record = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return fallback
    if isinstance(record, dict) and record.get("error"):
        return _error_sentence(record["error"]) or fallback
    return fallback


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
