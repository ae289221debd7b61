"""DeepSeek V3 to V3.1: calls between control tokens, arguments as JSON."""

from __future__ import annotations

from collections.abc import Sequence

import regex

from engine.chat.parsers.answer import Calls
from engine.chat.parsers.grammar import CallForm, Grammar, literal, optional
from engine.chat.parsers.json_arguments import read_json
from engine.chat.parsers.json_grammar import json_arguments
from engine.chat.parsers.stream import OutputStream, Script, compiled
from engine.chat.parsers.tools import Tool

NAME = "deepseek_tokens"

BEGIN, END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
BLOCK, BLOCK_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"


def speaks(template: str) -> bool:
    return BEGIN in template


def calls(stream: OutputStream, _tools: Sequence[Tool]) -> Calls:
    separator = stream.mark(SEPARATOR)
    # V3 and R1 write `function`, the name and a fenced block; V3.1 the name and plain JSON.
    fenced = rf"function{separator}(?P<fenced>[^\n`]{{1,256}}+)\n```json\n"
    plain = rf"(?P<plain>(?!function{separator})[^\n]{{0,256}}?){separator}"
    header = rf"(?:{stream.mark(BLOCK)}\s*+)?{stream.mark(BEGIN)}(?:{fenced}|{plain})"
    closing = compiled(rf"\s*+(?:```)?+\s*+{stream.mark(END)}")

    def read(stream: OutputStream, match: regex.Match[str]) -> Script:
        name = match.group("fenced") or match.group("plain")
        call = stream.open_call(name.strip())
        good = yield from read_json(stream, call)
        complete = (yield from stream.at(closing)) is not None
        stream.close_call(call, complete=good and complete)

    return Calls(header, read, between=stream.mark(BLOCK_END))


def form(grammar: Grammar) -> CallForm:
    mark = grammar.markup

    def call(tool: Tool) -> str:
        arguments = json_arguments(grammar, tool)
        plain = f"{literal(tool.name)} {mark(SEPARATOR)} {arguments}"
        fence = literal(f"{tool.name}\n```json\n")
        fenced = f"{mark('function' + SEPARATOR)} {fence} {arguments} {literal(chr(10) + '```')}"
        return f"{mark(BEGIN)} ({plain} | {fenced}) {mark(END)}"

    return CallForm(call, begin=mark(BLOCK), between=optional("\n"), end=mark(BLOCK_END))
