"""Arguments that a model writes as plain text between tags, handed on as the JSON they mean."""

from __future__ import annotations

import ast
import json
from typing import Any, Protocol

from engine.chat.parsers.json_arguments import parsed, written
from engine.chat.parsers.parameters import type_of

_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_LITERAL_CHARS = 64 << 10
"""Longer values are not tried as Python literals, which small models write now and then."""


class Value(Protocol):
    """One argument's value on its way from text to JSON."""

    def feed(self, text: str) -> str: ...

    def end(self) -> str: ...


def value_of(types: frozenset[str]) -> Value:
    """How to write a parameter of these types; of none: as what its text looks like."""
    return _String() if types == {"string"} else _Typed(types)


class _String:
    """JSON as the text comes."""

    def __init__(self) -> None:
        self._open = False

    def feed(self, text: str) -> str:
        begin = "" if self._open else '"'
        self._open = True
        return begin + json.dumps(text, ensure_ascii=False)[1:-1]

    def end(self) -> str:
        return '"' if self._open else '""'


class _Typed:
    """JSON once all of the text is there, since only then its type is known."""

    def __init__(self, types: frozenset[str]) -> None:
        self._types = types
        self._text: list[str] = []

    def feed(self, text: str) -> str:
        self._text.append(text)
        return ""

    def end(self) -> str:
        text = "".join(self._text)
        value = _interpreted(text.strip(), text)
        if self._types and "string" in self._types and not self._allows(value):
            value = text
        return written(value) or json.dumps(text, ensure_ascii=False)

    def _allows(self, value: Any) -> bool:
        kind = type_of(value)
        return kind in self._types or (kind == "integer" and "number" in self._types)


def _interpreted(text: str, otherwise: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    value = parsed(text)
    if value is not None:
        return value
    if text[:1] in ("{", "[", "(") and len(text) <= _LITERAL_CHARS:
        try:
            value = ast.literal_eval(text)
            json.dumps(value, allow_nan=False)  # what else Python has
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return otherwise
        return value
    return otherwise
