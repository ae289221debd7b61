"""Tool calls whose parameters stand one by one between tags."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import regex

from engine.chat.parsers.answer import Calls
from engine.chat.parsers.stream import Emit, OutputStream, Script, compiled
from engine.chat.parsers.tools import Tool
from engine.chat.parsers.typed_arguments import Value, parameter_types, value_of


@dataclass(frozen=True)
class Tags:
    """Patterns of one family for one stream. White space before each of them but `value_end` is
    skipped."""

    header: str
    """As in Calls."""
    parameter: str
    """Up to where the value begins. Groups: `key`, and `string` where the markup says whether the
    value is text (true or false)."""
    value_end: str
    """What closes a value: a tag that the call can go on after, so that values may hold it."""
    end: str
    between: str | None = None


def tagged_calls(tags: Tags, tools: Sequence[Tool]) -> Calls:
    schemas = {tool.name: tool.parameters for tool in tools}
    parameter = compiled(r"\s*+" + tags.parameter)
    value_end = compiled(tags.value_end)
    end = compiled(r"\s*+" + tags.end)

    def read(stream: OutputStream, header: regex.Match[str]) -> Script:
        name = header.group("name").strip()
        call = stream.open_call(name)
        schema = schemas.get(stream.spelled(name))
        separator = "{"
        while match := (yield from stream.at(parameter)):
            key = stream.spelled(match.group("key").strip())
            stream.arguments(call, separator + json.dumps(key, ensure_ascii=False) + ": ")
            separator = ", "
            types = _said(match) or parameter_types(schema, key)
            value = value_of(types)
            closed = yield from stream.until(value_end, _into(stream, call, value))
            stream.arguments(call, value.end())
            if closed is None:
                stream.arguments(call, "}")
                stream.close_call(call, complete=False)
                return
        stream.arguments(call, "{}" if separator == "{" else "}")
        complete = (yield from stream.at(end)) is not None
        stream.close_call(call, complete=complete)

    return Calls(tags.header, read, tags.between)


def _into(stream: OutputStream, call: int, value: Value) -> Emit:
    return lambda text: stream.arguments(call, value.feed(stream.spelled(text)))


def _said(match: regex.Match[str]) -> frozenset[str]:
    """What the markup itself says about a value's type."""
    said = match.groupdict().get("string")
    if said is None:
        return frozenset()
    return frozenset({"string"} if said == "true" else {"number", "boolean", "object", "array"})
