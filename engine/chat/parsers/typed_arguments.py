"""Arguments that a model writes as plain text between tags, handed on as the JSON they mean."""

from __future__ import annotations

import ast
import json
from typing import Any, Protocol

from engine.chat.parsers.json_arguments import parsed

_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_LITERAL_CHARS = 64 << 10
"""Longer values are not tried as Python literals, which small models write now and then."""


def parameter_types(schema: Any, name: str) -> frozenset[str]:
    """JSON types that a tool's schema allows for a parameter; empty where it says nothing."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    declared = properties.get(name) if isinstance(properties, dict) else None
    return frozenset(_types(declared, schema, 8))


def _types(declared: Any, root: Any, depth: int) -> set[str]:
    if not isinstance(declared, dict) or depth == 0:
        return set()
    reference = declared.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        target = root
        for key in reference[2:].split("/"):
            target = target.get(key) if isinstance(target, dict) else None
        return _types(target, root, depth - 1)
    named = declared.get("type")
    if isinstance(named, str):
        return {named}
    if isinstance(named, list):
        return {each for each in named if isinstance(each, str)}
    types: set[str] = set()
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(declared.get(key), list):
            for each in declared[key]:
                types |= _types(each, root, depth - 1)
    values = declared.get("enum", [declared["const"]] if "const" in declared else [])
    return types | {_type(value) for value in values} if isinstance(values, list) else types


def _type(value: Any) -> str:
    for kind, name in (
        (bool, "boolean"),
        (int, "integer"),
        (float, "number"),
        (str, "string"),
        (list, "array"),
        (dict, "object"),
    ):
        if isinstance(value, kind):
            return name
    return "null"


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
        return json.dumps(value, ensure_ascii=False)

    def _allows(self, value: Any) -> bool:
        kind = _type(value)
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
            json.dumps(value, allow_nan=False)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return otherwise
        return value
    return otherwise
