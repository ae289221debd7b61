"""Arguments that a model writes as JSON, handed on while they are written."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any, NoReturn

import regex

from engine.chat.parsers.stream import OutputStream

_INTERESTING = regex.compile(r'["\\{}\[\]\x00-\x1f]')
_SCALAR_END = regex.compile(r"[,}\]\s<]")
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def read_json(stream: OutputStream, call: int) -> Generator[None, None, bool]:
    """Consume one JSON value as the arguments of `call`; whether it is an object.

    Control characters inside strings, which models write and JSON forbids, come out escaped. Text
    in quotes that holds an object, and null, are taken for the object that they mean.
    """
    scanner = _Scanner()
    parts: list[str] = []
    whole = False  # emitted at the end only
    while not scanner.done:
        chunk = yield from stream.more()
        if not chunk:
            break
        text, left = scanner.feed(chunk)
        stream.give_back(left)
        whole = whole or not scanner.nested
        parts.append(text)
        if not whole:
            stream.arguments(call, text)
    value = "".join(parts)
    if whole:
        value = _meant(value)
        stream.arguments(call, value)
    return scanner.done and isinstance(parsed(value), dict)


def parsed(text: str) -> Any:
    """The value of a JSON text, or None. NaN and Infinity, which Python reads, are not JSON."""
    try:
        return json.loads(text, strict=False, parse_constant=_refused)
    except (ValueError, RecursionError):
        return None


def written(value: Any) -> str | None:
    """JSON of a value; None of one that has none, such as a number too large for a float."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return None


def _refused(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _meant(text: str) -> str:
    value = parsed(text)
    if isinstance(value, str) and isinstance(parsed(value), dict):
        return value
    return "{}" if text == "null" else text


class _Scanner:
    """Finds where a JSON value ends."""

    def __init__(self) -> None:
        self.done = False
        self.nested = False
        """The value is an object or an array."""
        self._begun = False
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, chunk: str) -> tuple[str, str]:
        """What of the chunk belongs to the value, and what follows it."""
        out: list[str] = []
        at = 0
        if not self._begun:
            chunk = chunk.lstrip()
            if not chunk:
                return "", ""
            self._begun = True
            self.nested = chunk[0] in "{["
            self._scalar = chunk[0] not in '{["'
        if self._scalar:
            end = _SCALAR_END.search(chunk)
            self.done = end is not None
            cut = end.start() if end else len(chunk)
            return chunk[:cut], chunk[cut:]
        while at < len(chunk):
            if self._escaped:
                out.append(chunk[at])
                self._escaped = False
                at += 1
                continue
            match = _INTERESTING.search(chunk, at)
            if match is None:
                out.append(chunk[at:])
                break
            out.append(chunk[at : match.start()] + self._met(match.group()))
            at = match.end()
            if self._depth == 0 and not self._in_string:
                self.done = True
                return "".join(out), chunk[at:]
        return "".join(out), ""

    def _met(self, character: str) -> str:
        if self._in_string:
            if character == '"':
                self._in_string = False
            elif character == "\\":
                self._escaped = True
            elif character < " ":
                return _ESCAPES.get(character, f"\\u{ord(character):04x}")
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
        return character
