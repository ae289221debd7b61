"""Grammars for whole answers: a format for the text, or calls that must be made."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engine.chat.parsers import harmony
from engine.chat.parsers.answer import END_OF_THINKING, THINK
from engine.chat.parsers.families import Family
from engine.chat.parsers.grammar import Grammar, calls_of
from engine.chat.parsers.tools import Tool

Thinking = Literal["opened", "possible", "none"]
"""Whether the prompt has opened a thinking tag, or the model may open one itself."""

_FORMAT = "answer_format"
_SPACE = r"/[ \n]{0,4}/"


@dataclass(frozen=True)
class AnswerFormat:
    """What the text of an answer must be."""

    kind: Literal["json_schema", "regex", "lark"]
    content: Any
    """A JSON schema, a regular expression or a Lark grammar with a rule `start`."""


def structured_answer(
    family: Family, wanted: AnswerFormat, special: Mapping[str, int], thinking: Thinking
) -> str:
    """A grammar for text in a format, thinking before it left free."""
    grammar = Grammar(special)
    start = f"{_before(family, grammar, thinking)} {_lead(family, grammar)} @{_FORMAT}"
    inner: dict[str, Any] = {"name": _FORMAT}
    if wanted.kind == "json_schema":
        inner["json_schema"] = wanted.content
    elif wanted.kind == "lark":
        inner["lark_grammar"] = wanted.content
    else:
        pattern = str(wanted.content).replace("/", r"\/")
        inner["lark_grammar"] = f"start: /{pattern}/"
    return json.dumps({"grammars": [{"lark_grammar": grammar.text(start)}, inner]})


def enforced_calls(
    family: Family,
    tools: Sequence[Tool],
    special: Mapping[str, int],
    thinking: Thinking,
    *,
    several: bool,
) -> str:
    """A grammar for one call of one of the tools, or `several`, in the family's own syntax."""
    grammar = Grammar(special)
    calls = calls_of(family.form(grammar), tools, several=several)
    start = f"{_before(family, grammar, thinking)} {calls}"
    return json.dumps({"grammars": [{"lark_grammar": grammar.text(start)}]})


def _before(family: Family, grammar: Grammar, thinking: Thinking) -> str:
    if family.name == harmony.NAME:
        return harmony.thinking(grammar)
    if thinking == "none":
        return ""
    rest = f"{grammar.text_before(END_OF_THINKING)} {_SPACE}"
    return rest if thinking == "opened" else f"({grammar.mark(THINK)} {rest})?"


def _lead(family: Family, grammar: Grammar) -> str:
    return harmony.final(grammar) if family.name == harmony.NAME else ""
