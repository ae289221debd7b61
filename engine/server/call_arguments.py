"""A call's arguments as an object, whatever a model wrote for them."""

from __future__ import annotations

import re
from typing import Any

import msgspec

MAX_DEPTH = 64
"""Deepest nesting of arguments; what lies deeper is left out."""
_CLOSERS = {"{": "}", "[": "]"}
_MARKS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+("?)|[][{},]', re.DOTALL)
"""Strings, with the quote that ends them, and what structures a JSON text."""


def arguments_object(text: str) -> dict[str, Any]:
    """The JSON object that the text is; otherwise as much of it as is whole, where that has a
    member; {} for no text, `null`, and an object that ends before its first member does. Any other
    text is kept as it is, under the name `arguments`.

    Clients send a call back with what came of it: a history that was refused for what a model
    wrote would be refused for ever.
    """
    if text.strip() in ("", "null"):
        return {}
    if text.count("{") + text.count("[") <= MAX_DEPTH:
        found = _decoded(text)
        if found is not None:
            return found
    wholes, is_open = _wholes(text)
    for whole in wholes:
        found = _decoded(whole)
        if found:
            return found
    return {} if is_open and text.lstrip()[0] == "{" else {"arguments": text}


def object_of(value: Any) -> dict[str, Any]:
    """The same of arguments that a client has read as JSON."""
    if isinstance(value, dict):
        return value
    return arguments_object(
        value if isinstance(value, str) else msgspec.json.encode(value).decode()
    )


def _decoded(text: str) -> dict[str, Any] | None:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _wholes(text: str) -> tuple[list[str], bool]:
    """The begins of the text that may be whole once closed, the longest first, and whether it is
    open at its end. Found in one pass: its cost grows with the text, whatever stands in it."""
    closers = quote = cut_closers = ""
    cut = members = 0
    end = len(text)
    for mark in _MARKS.finditer(text):
        char = mark.group()[0]
        if char == '"':
            quote = "" if mark[1] else '"'
        elif char == ",":
            cut, cut_closers = mark.start(), closers
            members = cut if closers == "}" else members
        elif char in _CLOSERS:
            if len(closers) == MAX_DEPTH:
                break
            closers = _CLOSERS[char] + closers
            cut, cut_closers = mark.end(), closers
        else:
            closers = closers[1:]
            if not closers:
                end = mark.end()
                break
    wholes = [text[:end] + quote + closers, text[:cut] + cut_closers, text[:members] + "}"]
    return wholes, bool(closers)
