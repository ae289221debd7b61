"""Qwen2.5, Qwen3, Hermes: a JSON object with name and arguments between <tool_call> tags."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import regex

from engine.chat.parsers.answer import Calls
from engine.chat.parsers.grammar import CallForm, Grammar, literal, optional
from engine.chat.parsers.json_arguments import parsed, read_json, written
from engine.chat.parsers.stream import OutputStream, Script, compiled
from engine.chat.parsers.tools import Tool

NAME = "hermes"
MARK = "<tool_call>"

_STRING = r'"(?:[^"\\]|\\.)*+"'
_NAME = r'"(?:[^"\\]|\\.){0,256}+"'
_FIELD = rf"\s*+,\s*+{_STRING}\s*+:\s*+(?:{_STRING}|[\w.+-]++)"


def speaks(template: str) -> bool:
    """A template that asks for <tool_call> and writes calls as JSON with a field `name`."""
    return MARK in template and bool(regex.search(r'\{\\*"name\\*"\s*:', template))


def calls(stream: OutputStream, _tools: Sequence[Tool]) -> Calls:
    begin, end = stream.mark(MARK), stream.mark("</tool_call>")
    # Where the name does not come first, the call is read as a whole.
    first = rf'\s*+\{{\s*+"name"\s*+:\s*+(?P<name>{_NAME})\s*+,\s*+"(?:arguments|parameters)"\s*+:'
    header = rf"{begin}(?:{first}|(?P<object>\s*+\{{.*?\}})\s*+{end})"
    # A brace too many and a forgotten tag are common; nothing is lost by either.
    closing = compiled(rf"(?:{_FIELD})*+\s*+\}}++\s*+(?:{end}|(?={begin}))")

    def read(stream: OutputStream, match: regex.Match[str]) -> Script:
        if match.group("name") is None:
            _whole(stream, match)
            return
        call = stream.open_call(_name(match.group("name")))
        good = yield from read_json(stream, call)
        complete = (yield from stream.at(closing)) is not None
        stream.close_call(call, complete=good and complete)

    return Calls(header, read)


def _name(quoted: str) -> str:
    name = parsed(quoted)
    return name if isinstance(name, str) else quoted[1:-1]


def _whole(stream: OutputStream, match: regex.Match[str]) -> None:
    found: Any = parsed(match.group("object"))
    fields = found if isinstance(found, dict) else {}
    name = fields.get("name")
    arguments = fields.get("arguments", fields.get("parameters", {} if len(fields) == 1 else None))
    if not isinstance(name, str) or (arguments is None and "arguments" not in fields):
        stream.text(match.group())
        return
    if isinstance(arguments, str) and isinstance(parsed(arguments), dict):
        arguments = parsed(arguments)
    text = written({} if arguments is None else arguments)
    if text is None:
        stream.text(match.group())
        return
    call = stream.open_call(name)
    stream.arguments(call, text)
    stream.close_call(call, complete=arguments is None or isinstance(arguments, dict))


def form(grammar: Grammar) -> CallForm:
    begin, end = grammar.markup(MARK), grammar.markup("</tool_call>")
    line = optional("\n")

    def call(tool: Tool) -> str:
        head = literal(f'{{"name": {json.dumps(tool.name)}, "arguments": ')
        arguments = grammar.json(tool.parameters)
        return f"{begin} {line} {head} {arguments} {literal('}')} {line} {end}"

    return CallForm(call, between=line)
