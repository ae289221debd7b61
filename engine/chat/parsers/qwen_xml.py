"""Qwen3-Coder, Qwen3.5 and later: <function=name> with <parameter=key> blocks in <tool_call>."""

from __future__ import annotations

from collections.abc import Sequence

from engine.chat.parsers.answer import Calls
from engine.chat.parsers.stream import OutputStream
from engine.chat.parsers.tagged_calls import Tags, tagged_calls
from engine.chat.parsers.tools import Tool

NAME = "qwen_xml"


def speaks(template: str) -> bool:
    return "<function=" in template and "<parameter=" in template


def calls(stream: OutputStream, tools: Sequence[Tool]) -> Calls:
    begin, end = stream.mark("<tool_call>"), stream.mark("</tool_call>")
    # Models leave out <tool_call> now and then, and the closing tag of a parameter.
    tags = Tags(
        header=rf"(?:{begin}\s*+)?<function=(?P<name>[^<>\n]{{1,256}}+)>",
        parameter=r"<parameter=(?P<key>[^<>\n]{1,256}+)>(?:\n|(?!\n)(?=.))",
        value_end=r"\n?</parameter>(?=\s*+(?:<parameter=|</function>))"
        rf"|\n?(?=</function>\s*+(?:{end}|{begin}))",
        end="</function>",
        between=end,
    )
    return tagged_calls(tags, tools)
