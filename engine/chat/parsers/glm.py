"""GLM-4.5 and later: <tool_call>name with <arg_key> and <arg_value> pairs."""

from __future__ import annotations

from collections.abc import Sequence

from engine.chat.parsers.answer import Calls
from engine.chat.parsers.grammar import CallForm, Grammar, literal, optional
from engine.chat.parsers.stream import OutputStream
from engine.chat.parsers.tagged_calls import Tags, tagged_calls
from engine.chat.parsers.tagged_grammar import tagged_parameters
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


def form(grammar: Grammar) -> CallForm:
    # GLM-4.5 and 4.6 put line breaks between the tags, later ones do not.
    mark, line = grammar.markup, optional("\n")

    def parameter(name: str, _text: bool) -> str:
        key = f"{line} {mark('<arg_key>')} {literal(name)} {mark('</arg_key>')}"
        return f"{key} {line} {mark('<arg_value>')}"

    def call(tool: Tool) -> str:
        parameters = tagged_parameters(grammar, tool, parameter, "</arg_value>")
        head = f"{mark('<tool_call>')} {literal(tool.name)}"
        return f"{head} {parameters} {line} {mark('</tool_call>')}"

    return CallForm(call, between=line)
