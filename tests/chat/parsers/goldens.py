"""Outputs as models of each family write them, and the answers that they mean."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import regex

from engine.chat.parsers.events import (
    CallArguments,
    CallClosed,
    CallOpened,
    OutputEvent,
    Piece,
    Reasoning,
    Text,
)
from engine.chat.parsers.families import family_named
from engine.chat.parsers.tools import Tool

TOOLS = (
    Tool(
        "read_file",
        {
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "lines": {"type": "integer"},
                "follow": {"type": ["boolean", "null"]},
                "ranges": {"$ref": "#/$defs/ranges"},
                "mode": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
            },
            "$defs": {"ranges": {"type": "array"}},
        },
    ),
    Tool("now", {"type": "object", "properties": {}}),
)


@dataclass
class Answer:
    """An answer in whole; equal answers mean the same."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str, bool]] = field(default_factory=list)
    """Name, arguments, complete."""
    order: list[str] = field(default_factory=list)

    @property
    def everything(self) -> str:
        named = "".join(name + arguments for name, arguments, _ in self.calls)
        return self.text + self.reasoning + named


def answer(events: Iterable[OutputEvent]) -> Answer:
    """Also checks that calls are opened, filled and closed one after the other."""
    whole = Answer()
    current: int | None = None
    for event in events:
        match event:
            case Text(text):
                assert current is None and text
                whole.text += text
            case Reasoning(text):
                assert current is None and text
                whole.reasoning += text
            case CallOpened(index, name):
                assert current is None and index == len(whole.calls)
                current = index
                whole.calls.append((name, "", False))
            case CallArguments(index, text):
                assert index == current
                name, before, _ = whole.calls[index]
                whole.calls[index] = (name, before + text, False)
            case CallClosed(index, complete):
                assert index == current
                current = None
                name, arguments, _ = whole.calls[index]
                whole.calls[index] = (name, arguments, complete)
                if complete:
                    value = json.loads(arguments, parse_constant=lambda name: [name])
                    assert isinstance(value, dict)
        kind = type(event).__name__
        if not whole.order or whole.order[-1] != kind:
            whole.order.append(kind)
    assert current is None
    return whole


@dataclass(frozen=True)
class Golden:
    family: str
    output: str
    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, Any], ...] = ()
    """Name and arguments; a text of arguments is that of a call that is not complete."""
    thinking: bool = False
    special: tuple[str, ...] = ()
    """Spellings that are control tokens of the vocabulary."""

    def pieces(self, output: str | None = None) -> list[Piece]:
        output = self.output if output is None else output
        if not self.special:
            return [Piece(output)] if output else []
        parts = regex.split("(" + "|".join(map(regex.escape, self.special)) + ")", output)
        return [Piece(part, part in self.special) for part in parts if part]

    def parse(self, pieces: Iterable[Piece]) -> Answer:
        parser = family_named(self.family).parser(TOOLS, self.special, thinking=self.thinking)
        events = [event for piece in pieces for event in parser.feed(piece)]
        return answer([*events, *parser.finish()])


HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>")
V31 = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
)
GLM: tuple[str, ...] = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<arg_key>",
    "</arg_key>",
)
GLM += ("<arg_value>", "</arg_value>")

GOLDENS = (
    # thinking
    Golden("plain", "Just words, 1 < 2 and <b>bold</b>.", "Just words, 1 < 2 and <b>bold</b>."),
    Golden("plain", "<think>\nSo it is.\n</think>\n\nYes.", "Yes.", "So it is."),
    Golden("plain", "So it is.\n</think>\n\nYes.", "Yes.", "So it is.", thinking=True),
    Golden("plain", "<think>\n\n</think>\n\nYes.", "Yes."),
    Golden("plain", "It never ends", "", "It never ends", thinking=True),
    Golden("plain", "A <think> tag is text here.", "A <think> tag is text here."),
    # hermes
    Golden(
        "hermes",
        '<think>\nLook.\n</think>\n\nLooking.\n<tool_call>\n{"name": "read_file", "arguments": '
        '{"path": "a </tool_call> {b", "lines": 3}}\n</tool_call>\n<tool_call>\n'
        '{"name": "now", "arguments": {}}\n</tool_call>',
        "Looking.",
        "Look.",
        (("read_file", {"path": "a </tool_call> {b", "lines": 3}), ("now", {})),
    ),
    Golden(
        "hermes",
        '<tool_call>\n{"arguments": {"lines": 2}, "name": "read_file"}\n</tool_call>',
        calls=(("read_file", {"lines": 2}),),
    ),
    Golden(
        "hermes",
        '<tool_call>{"name": "read_file", "arguments": "{\\"lines\\": 2}"}</tool_call>',
        calls=(("read_file", {"lines": 2}),),
    ),
    Golden(
        "hermes",
        '<tool_call>{"name": "read_file", "arguments": {"path": "two\nlines"}}}</tool_call>',
        calls=(("read_file", {"path": "two\nlines"}),),
    ),
    Golden(
        "hermes",
        '<tool_call>{"name": "now", "arguments": {}}\n<tool_call>{"name": "now", "arguments": {}}'
        "</tool_call> Done.",
        " Done.",
        calls=(("now", {}), ("now", {})),
    ),
    Golden(
        "hermes",
        'I must look\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        "",
        "I must look",
        (("now", {}),),
        thinking=True,
    ),
    Golden("hermes", "<tool_call>no json</tool_call> x", "<tool_call>no json</tool_call> x"),
    Golden(
        "hermes",
        'a <tool_call>{"name": "read_file", "arguments": {"path": "cut',
        "a",
        calls=(("read_file", '{"path": "cut'),),
    ),
    # qwen_xml
    Golden(
        "qwen_xml",
        "Reading.\n\n<tool_call>\n<function=read_file>\n<parameter=path>\nan </parameter> inside\n"
        "and a last line\n\n</parameter>\n<parameter=lines>\n3\n</parameter>\n<parameter=ranges>\n"
        "[[1, 2]]\n</parameter>\n<parameter=follow>\nTrue\n</parameter>\n</function>\n</tool_call>"
        "\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        "Reading.",
        calls=(
            (
                "read_file",
                {
                    "path": "an </parameter> inside\nand a last line\n",
                    "lines": 3,
                    "ranges": [[1, 2]],
                    "follow": True,
                },
            ),
            ("now", {}),
        ),
    ),
    Golden(
        "qwen_xml",
        "<function=read_file>\n<parameter=path>\n123\n</parameter>\n<parameter=lines>\nmany\n"
        "</parameter>\n<parameter=mode>\nr\n</parameter>\n</function>\n</tool_call>",
        calls=(("read_file", {"path": "123", "lines": "many", "mode": "r"}),),
    ),
    Golden(
        "qwen_xml",
        "<tool_call>\n<function=read_file>\n<parameter=mode>\n5\n</parameter>\n<parameter=path>\n"
        "x\n</function>\n</tool_call>",
        calls=(("read_file", {"mode": 5, "path": "x"}),),
    ),
    Golden(
        "qwen_xml",
        "<tool_call>\n<function=read_file>\n<parameter=path>\nx",
        calls=(("read_file", '{"path": "x"}'),),
    ),
    # deepseek
    Golden(
        "deepseek_tokens",
        "Hm.</think>Reading.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>read_file<｜tool▁sep｜>"
        '{"path": "x"}<｜tool▁call▁end｜>'
        "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "Reading.",
        "Hm.",
        (("read_file", {"path": "x"}), ("now", {})),
        thinking=True,
        special=V31,
    ),
    Golden(
        "deepseek_tokens",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>read_file\n```json\n"
        '{"lines": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        calls=(("read_file", {"lines": 1}),),
        special=V31,
    ),
    Golden(
        "deepseek_dsml",
        'Reading.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="read_file">\n'
        '<｜DSML｜parameter name="path" string="true">12</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="lines" string="false">3</｜DSML｜parameter>\n'
        '</｜DSML｜invoke>\n<｜DSML｜invoke name="now">\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        "Reading.",
        calls=(("read_file", {"path": "12", "lines": 3}), ("now", {})),
        special=("｜DSML｜",),
    ),
    Golden(
        "deepseek_dsml",
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n'
        "</｜DSML｜tool_calls>",
        calls=(("now", {}),),
    ),
    # glm
    Golden(
        "glm",
        "\n<think>Hm.</think>\nReading.\n<tool_call>read_file\n<arg_key>path</arg_key>\n"
        "<arg_value>x\ny </arg_value>\n<arg_key>lines</arg_key>\n<arg_value>4</arg_value>\n"
        "</tool_call>",
        "Reading.",
        "Hm.",
        (("read_file", {"path": "x\ny ", "lines": 4}),),
        special=GLM,
    ),
    Golden(
        "glm",
        "<tool_call>now</tool_call><tool_call>read_file<arg_key>path</arg_key><arg_value>"
        "</arg_value></tool_call>",
        calls=(("now", {}), ("read_file", {"path": ""})),
    ),
    # harmony
    Golden(
        "harmony",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary"
        "<|message|>Reading.<|end|><|start|>assistant<|channel|>commentary to=functions.read_file "
        '<|constrain|>json<|message|>{"path": "x"}',
        "Reading.",
        "Hm.",
        (("read_file", {"path": "x"}),),
        special=HARMONY,
    ),
    Golden(
        "harmony",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.now<|channel|>"
        "commentary json<|message|>{}<|call|>",
        "",
        "Hm.",
        (("now", {}),),
        special=HARMONY,
    ),
    Golden("harmony", "<|channel|>final<|message|>Yes.", "Yes.", special=HARMONY),
    Golden("harmony", "No header.", "No header.", special=HARMONY),
)
