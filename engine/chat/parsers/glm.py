"""GLM-4.5 and later: <tool_call>name with <arg_key> and <arg_value> pairs."""

from __future__ import annotations

from collections.abc import Sequence

from engine.chat.parsers.answer import Calls
from engine.chat.parsers.stream import OutputStream
from engine.chat.parsers.tagged_calls import Tags, tagged_calls
from engine.chat.parsers.tools import Tool

NAME = "glm"


def speaks(template: str) -> bool:
    return "<arg_key>" in template and "<tool_call>" in template


def calls(stream: OutputStream, tools: Sequence[Tool]) -> Calls:
    mark = stream.mark
    key, key_end = mark("<arg_key>"), mark("</arg_key>")
    value, value_end = mark("<arg_value>"), mark("</arg_value>")
    end = mark("</tool_call>")
    tags = Tags(
        header=rf"{mark('<tool_call>')}(?P<name>[^<{{\n]{{0,256}}?)\s*+(?={key}|{end})",
        parameter=rf"{key}(?P<key>.{{0,256}}?){key_end}\s*+{value}",
        value_end=rf"{value_end}(?=\s*+(?:{key}|{end}))",
        end=end,
    )
    return tagged_calls(tags, tools)
