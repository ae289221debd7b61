"""A call's arguments as an object, also where the model did not write them to their end."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.errors import InvalidRequest
from engine.server.bodies import MAX_LEVELS, too_deep

_CLOSERS = {"{": "}", "[": "]"}


def arguments_object(text: str) -> dict[str, Any]:
    """The object; of one that is cut off, as much as is whole; {} where there is none."""
    found = _decoded(text)
    if found is None:
        cut, closers, _ = _last_whole(text)
        found = _decoded(text + closers[0]) if closers[0] is not None else None
        if found is None and cut:
            found = _decoded(text[:cut] + (closers[1] or ""))
    return found or {}


def replayed(text: str, where: str) -> dict[str, Any]:
    """The arguments of a call in a history; of one that a model did not write to its end as much
    as is whole, since clients send it back with what came of it. Raises InvalidRequest for others
    that are no JSON object, or one nested too deeply: they would stand in the prompt as if they
    were."""
    if not text.strip() or text.strip() == "null":
        return {}
    found = _decoded(text)
    if found is not None:
        return found
    if not is_cut(text):
        raise no_arguments(where)
    return arguments_object(text)


def no_arguments(where: str) -> InvalidRequest:
    return InvalidRequest(
        f"{where} is not the text of a JSON object of at most {MAX_LEVELS} levels.", param=where
    )


def is_cut(text: str) -> bool:
    """Whether this is the begin of an object, with at least that of a member."""
    return text.lstrip()[:1] == "{" and '"' in text and _last_whole(text)[2]


def _decoded(text: str) -> dict[str, Any] | None:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) and not too_deep(value) else None


def _last_whole(text: str) -> tuple[int, tuple[str | None, str | None], bool]:
    """Where the last member that is whole ends; what closes the text, all of it, and up to there;
    and whether it is open at its end."""
    stack: list[str] = []
    quoted = escaped = False
    cut, at_cut = 0, None
    for position, char in enumerate(text):
        if escaped:
            escaped = False
        elif quoted:
            escaped = char == "\\"
            quoted = char != '"'
        elif char == '"':
            quoted = True
        elif char in _CLOSERS:
            stack.append(_CLOSERS[char])
            cut, at_cut = position + 1, "".join(reversed(stack))
        elif char in "}]" and stack:
            stack.pop()
        elif char == ",":
            cut, at_cut = position, "".join(reversed(stack))
    whole = None if escaped else '"' * quoted + "".join(reversed(stack))
    return cut, (whole, at_cut), bool(stack)
