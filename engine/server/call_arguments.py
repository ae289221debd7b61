"""A call's arguments as an object, also where the model did not write them to their end."""

from __future__ import annotations

from typing import Any

import msgspec

_CLOSERS = {"{": "}", "[": "]"}


def arguments_object(text: str) -> dict[str, Any]:
    """The object; of one that is cut off, as much as is whole; {} where there is none."""
    found = _decoded(text)
    if found is None:
        cut, closers = _last_whole(text)
        found = _decoded(text + closers[0]) if closers[0] is not None else None
        if found is None and cut:
            found = _decoded(text[:cut] + (closers[1] or ""))
    return found or {}


def _decoded(text: str) -> dict[str, Any] | None:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _last_whole(text: str) -> tuple[int, tuple[str | None, str | None]]:
    """Where the last member that is whole ends, and what closes the text: all of it, and up to
    there."""
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
    return cut, (whole, at_cut)
