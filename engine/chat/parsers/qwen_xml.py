"""Qwen3-Coder, Qwen3.5 and later: <function=name> with <parameter=key> blocks in <tool_call>."""

from __future__ import annotations

from collections.abc import Sequence

from engine.chat.parsers.answer import Calls
from engine.chat.parsers.grammar import CallForm, Grammar, literal, optional
from engine.chat.parsers.stream import OutputStream
from engine.chat.parsers.tagged_calls import Tags, tagged_calls
from engine.chat.parsers.tagged_grammar import tagged_parameters
from engine.chat.parsers.tools import Tool

NAME = "qwen_xml"
MARK = "<function="

_CLOSING = r"<\/parameter>\s*(<parameter=|<\/function>)|<\/function>\s*<\/?tool_call>"
"""What the parser takes for the end of a value, in the dialect of grammars."""


def speaks(template: str) -> bool:
    return MARK in template and "<parameter=" in template


def calls(stream: OutputStream, tools: Sequence[Tool]) -> Calls:
    begin, end = stream.mark("<tool_call>"), stream.mark("</tool_call>")
    # Models leave out <tool_call> now and then, and the closing tag of a parameter.
    tags = Tags(
        header=rf"(?:{begin}\s*+)?{MARK}(?P<name>[^<>\n]{{1,256}}+)>",
        parameter=r"<parameter=(?P<key>[^<>\n]{1,256}+)>(?:\n|(?!\n)(?=.))",
        value_end=r"\n?</parameter>(?=\s*+(?:<parameter=|</function>))"
        rf"|\n?(?=</function>\s*+(?:{end}|{begin}))",
        end="</function>",
        between=end,
    )
    return tagged_calls(tags, tools)


def form(grammar: Grammar) -> CallForm:
    begin, end = grammar.markup("<tool_call>"), grammar.markup("</tool_call>")

    def call(tool: Tool) -> str:
        parameters = tagged_parameters(
            grammar,
            tool,
            lambda name, _text: literal(f"\n<parameter={name}>\n"),
            "\n</parameter>",
            _CLOSING,
        )
        head, tail = literal(f"\n<function={tool.name}>"), literal("\n</function>\n")
        return f"{begin} {head} {parameters} {tail} {end}"

    return CallForm(call, between=optional("\n"))
