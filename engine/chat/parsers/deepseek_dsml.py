"""DeepSeek V3.2 and V4: DSML tags with invoke and parameter."""

from __future__ import annotations

from collections.abc import Sequence

from engine.chat.parsers.answer import Calls
from engine.chat.parsers.stream import OutputStream
from engine.chat.parsers.tagged_calls import Tags, tagged_calls
from engine.chat.parsers.tools import Tool

NAME = "deepseek_dsml"

MARK = "｜DSML｜"


def speaks(template: str) -> bool:
    return MARK in template


def calls(stream: OutputStream, tools: Sequence[Tool]) -> Calls:
    mark = stream.mark(MARK)
    block = r"(?:function_calls|tool_calls)>"
    tags = Tags(
        header=rf'(?:<{mark}{block}\s*+)?<{mark}invoke name="(?P<name>[^"\n]{{1,256}}+)">',
        parameter=rf'<{mark}parameter name="(?P<key>[^"\n]{{1,256}}+)"'
        r'(?: string="(?P<string>true|false)")?>',
        value_end=rf"</{mark}parameter>(?=\s*+(?:<{mark}parameter |</{mark}invoke>))",
        end=rf"</{mark}invoke>",
        between=rf"</{mark}{block}",
    )
    return tagged_calls(tags, tools)
