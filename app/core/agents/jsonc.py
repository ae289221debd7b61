"""Edits of JSON files that people write: comments, trailing commas and layout stay as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from app.core.agents.agent import AgentError

_BLANK = re.compile(r"(?:[\s\ufeff]|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_WORD = re.compile(r"-?\d[\d.eE+-]*|true|false|null")
_INDENTED = re.compile(r'^([ \t]+)"', re.MULTILINE)


@dataclass
class _Node:
    """A value, and the span of the text that it was read from."""

    value: Any
    start: int
    end: int = 0
    members: list[tuple[str, _Node]] | None = None
    comma: bool = False
    """A comma follows the last member."""
    items: list[Any] = field(default_factory=list)


def parse(text: str) -> Any:
    """The value of a text with comments and trailing commas. Raises AgentError with the line."""
    return _Reader(text).whole().value


def put(text: str, path: Sequence[str], value: Any) -> str:
    """The text with the value at this path of member names; objects on the way are made.

    Raises AgentError where the text is no JSON, or something on the path is no object.
    """
    if not text.strip("\ufeff \t\r\n"):
        return text + json.dumps(_nested(path, value), indent=2, ensure_ascii=False) + "\n"
    top = node = _Reader(text).whole()
    unit = match[1] if (match := _INDENTED.search(text)) else "  "
    result = ""
    for depth, name in enumerate(path):
        if node.members is None:
            place = ".".join(path[:depth]) or "the whole"
            raise AgentError(f"{place} is no JSON object, so {'.'.join(path)} cannot be set.")
        found = [member for own, member in node.members if own == name]
        if not found:
            result = _insert(text, node, name, _nested(path[depth + 1 :], value), unit)
            break
        node = found[-1]  # of two alike the last one counts
    else:
        if node.value == value and type(node.value) is type(value):
            return text
        written = _written(value, text, _line_indent(text, node.start), unit)
        result = text[: node.start] + written + text[node.end :]
    if parse(result) != _changed(top.value, path, value):
        raise AgentError(f"{'.'.join(path)} cannot be set without changing other parts.")
    return result


def _nested(path: Sequence[str], value: Any) -> Any:
    for name in reversed(path):
        value = {name: value}
    return value


def _changed(whole: Any, path: Sequence[str], value: Any) -> Any:
    if not path:
        return value
    return {**whole, path[0]: _changed(whole.get(path[0], {}), path[1:], value)}


def _written(value: Any, text: str, indent: str, unit: str) -> str:
    lines = json.dumps(value, indent=unit, ensure_ascii=False)
    return lines.replace("\n", _newline(text) + indent)


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _line_indent(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _insert(text: str, node: _Node, name: str, value: Any, unit: str) -> str:
    """As the object's last member, in the object's own layout."""
    brace = node.end - 1
    outer = _line_indent(text, node.start)
    inner, newline = outer + unit, _newline(text)
    if not node.members:
        member = f"{json.dumps(name)}: {_written(value, text, inner, unit)}"
        inside = text[node.start + 1 : brace].rstrip()
        head = f"{text[: node.start + 1]}{inside}{newline}{inner}{member}"
        return f"{head}{newline}{outer}{text[brace:]}"
    last = node.members[-1][1].end
    tail = text[last:brace]
    kept = tail.rstrip()
    if "\n" in text[node.start : node.end]:
        member = f"{json.dumps(name)}: {_written(value, text, inner, unit)}"
        gap = newline + inner
    else:
        member, gap = f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}", " "
    before, after = ("", ",") if node.comma else (",", "")
    return f"{text[:last]}{before}{kept}{gap}{member}{after}{tail[len(kept) :]}{text[brace:]}"


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def whole(self) -> _Node:
        try:
            node = self._value()
        except RecursionError:
            self._fail("too deep")
        self._blank()
        if self._at != len(self._text):
            self._fail("something follows the value")
        return node

    def _value(self) -> _Node:
        self._blank()
        node = _Node(None, self._at)
        if self._take("{"):
            self._object(node)
        elif self._take("["):
            self._array(node)
        elif match := _STRING.match(self._text, self._at) or _WORD.match(self._text, self._at):
            node.value = self._plain(match)
        else:
            self._fail("a value is missing")
        node.end = self._at
        return node

    def _object(self, node: _Node) -> None:
        node.members = []
        while not self._closes("}"):
            match = _STRING.match(self._text, self._at)
            if match is None:
                self._fail("a name in quotes is missing")
            name = str(self._plain(match))
            self._blank()
            if not self._take(":"):
                self._fail("a colon is missing")
            node.members.append((name, self._value()))
            self._separator("}", node)
        node.value = {name: member.value for name, member in node.members}

    def _array(self, node: _Node) -> None:
        while not self._closes("]"):
            node.items.append(self._value().value)
            self._separator("]", node)
        node.value = node.items

    def _closes(self, bracket: str) -> bool:
        self._blank()
        return self._take(bracket)

    def _separator(self, bracket: str, node: _Node) -> None:
        self._blank()
        node.comma = self._take(",")
        if not node.comma and not self._text.startswith(bracket, self._at):
            self._fail(f"a comma or {bracket} is missing")

    def _plain(self, match: re.Match[str]) -> Any:
        try:
            value = json.loads(match[0])
        except ValueError:
            self._fail(f"{match[0][:40]} is no value")
        self._at = match.end()
        return value

    def _blank(self) -> None:
        match = _BLANK.match(self._text, self._at)
        self._at = match.end() if match else self._at

    def _take(self, letter: str) -> bool:
        found = self._text.startswith(letter, self._at)
        self._at += found
        return found

    def _fail(self, what: str) -> NoReturn:
        line = self._text.count("\n", 0, self._at) + 1
        raise AgentError(f"No JSON: {what} in line {line}.")
