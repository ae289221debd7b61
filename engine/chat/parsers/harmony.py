"""gpt-oss: messages on channels. Analysis is reasoning, a recipient makes a tool call of it."""

from __future__ import annotations

from collections.abc import Collection

from engine.chat.parsers.grammar import CallForm, Grammar, literal, optional
from engine.chat.parsers.json_arguments import read_json
from engine.chat.parsers.json_grammar import json_arguments
from engine.chat.parsers.stream import OutputStream, Script, ScriptedParser, compiled
from engine.chat.parsers.tools import Tool

NAME = "harmony"

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
CONSTRAIN, END, CALL = "<|constrain|>", "<|end|>", "<|call|>"


def speaks(template: str) -> bool:
    return CHANNEL in template and MESSAGE in template


def parser(special: Collection[str], *, tools: bool) -> ScriptedParser:
    return ScriptedParser(lambda stream: _messages(stream, tools=tools), special)


def _messages(stream: OutputStream, *, tools: bool) -> Script:
    start, channel = stream.mark(START), stream.mark(CHANNEL)
    message, end, call = stream.mark(MESSAGE), stream.mark(END), stream.mark(CALL)
    recipient = r"\s*+to=(?:functions\.)?(?P<{}>[\w.-]{{1,256}}+)"
    # The prompt ends with the role, so the first message has none.
    header = compiled(
        rf"(?:{start}assistant)?(?:{recipient.format('before')})?\s*+{channel}"
        rf"(?P<channel>analysis|commentary|final)(?:{recipient.format('after')})?\s*+"
        rf"(?:{stream.mark(CONSTRAIN)})?(?:json|code|text)?+\s*+{message}"
    )
    over = rf"{end}|{call}|(?={start})"
    message_end, call_end = compiled(over), compiled(rf"\s*+(?:{over})")
    while True:
        match = yield from stream.until(header, stream.text)
        if match is None:
            return
        name = match.group("before") or match.group("after")
        if name and tools:
            index = stream.open_call(name)
            good = yield from read_json(stream, index)
            complete = (yield from stream.at(call_end)) is not None
            # The token that ends a call also ends the output, and is then not part of it.
            stream.close_call(index, complete=good and (complete or stream.ended))
            continue
        hidden = match.group("channel") == "analysis"
        yield from stream.until(message_end, stream.reasoning if hidden else stream.text)


def form(grammar: Grammar) -> CallForm:
    """The token that ends a call also ends the output, so there is one call at most.

    Templates write the recipient before the channel, models after it.
    """
    mark = grammar.markup

    def call(tool: Tool) -> str:
        recipient = literal(f" to=functions.{tool.name}")
        channel = mark(f"{CHANNEL}commentary")
        json = f"{optional(' ')} {mark(f'{CONSTRAIN}json')} | {literal(' json')}"
        head = f"({recipient} {channel} | {channel} {recipient})"
        return f"{head} ({json})? {mark(MESSAGE)} {json_arguments(grammar, tool)}"

    return CallForm(call)


def thinking(grammar: Grammar) -> str:
    """An analysis message, or none."""
    head = grammar.markup(f"{CHANNEL}analysis{MESSAGE}")
    return f"({head} {grammar.text_before(END)} {grammar.markup(f'{START}assistant')})?"


def final(grammar: Grammar) -> str:
    """What comes before an answer in text."""
    return grammar.markup(f"{CHANNEL}final{MESSAGE}")
