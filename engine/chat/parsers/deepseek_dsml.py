"""DeepSeek V3.2 and V4: DSML tags with invoke and parameter."""

from __future__ import annotations

from collections.abc import Sequence

from engine.chat.parsers.answer import Calls
from engine.chat.parsers.grammar import CallForm, Grammar, literal, optional
from engine.chat.parsers.stream import OutputStream
from engine.chat.parsers.tagged_calls import Tags, tagged_calls
from engine.chat.parsers.tagged_grammar import tagged_parameters
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


def form(grammar: Grammar) -> CallForm:
    markup, line = grammar.markup, optional("\n")

    def parameter(name: str, text: bool) -> str:
        said = f' name="{name}" string="{"true" if text else "false"}">'
        return f"{line} {markup(f'<{MARK}parameter')} {literal(said)}"

    def call(tool: Tool) -> str:
        name = literal(f' name="{tool.name}">')
        head = f"{markup(f'<{MARK}invoke')} {name}"
        parameters = tagged_parameters(grammar, tool, parameter, f"</{MARK}parameter>")
        return f"{head} {parameters} {line} {markup(f'</{MARK}invoke>')} {line}"

    blocks = f"({literal('function_calls')} | {literal('tool_calls')})"
    return CallForm(
        call,
        between="",
        begin=f"{markup(f'<{MARK}')} {blocks} {literal('>' + chr(10))}",
        end=f"{markup(f'</{MARK}')} {blocks} {literal('>')}",
    )
