"""Grammars for whole answers: a format for the text, or calls that must be made.

What they return is Submit's `grammar`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from engine.chat.parsers import harmony
from engine.chat.parsers.answer import END_OF_THINKING, THINK
from engine.chat.parsers.families import Family
from engine.chat.parsers.grammar import Grammar, calls_of, optional, slashed
from engine.chat.parsers.schemas import prepared
from engine.chat.parsers.tools import Tool

Thinking = Literal["opened", "possible", "none"]
"""Whether the prompt has opened a thinking tag, or the model may open one itself."""

_SPACE = r"/[ \n]{0,4}/"
_LINES = r"/\n{0,2}/"
"""Models like to begin with these; parsers skip them."""
_NOUNS = {
    "json_schema": "The JSON schema",
    "regex": "The regular expression",
    "lark": "The grammar",
}


@dataclass(frozen=True)
class AnswerFormat:
    """What the text of an answer must be."""

    kind: Literal["json_schema", "regex", "lark"]
    content: Any
    """A JSON schema, a regular expression or a Lark grammar with a rule `start`."""
    param: str = "response_format"
    """The request's field that an error names."""


def structured_answer(
    family: Family,
    wanted: AnswerFormat,
    special: Mapping[str, int],
    thinking: Thinking,
    tools: Sequence[Tool] = (),
    *,
    several: bool = True,
) -> str:
    """A grammar for text in a format, thinking before it left free.

    With `tools` the answer may instead be a call of them, or `several`. Raises InvalidRequest for
    schemas nested too deep; other faults are found by the runtime.
    """
    grammar = Grammar(special)
    answer = f"{_lead(family, grammar)} {_format(grammar, wanted)}"
    if tools:
        answer = f"({answer} | {_calls(family, grammar, tools, 'tools', several=several)})"
    return grammar.document(f"{_before(family, grammar, thinking)} {answer}")


def enforced_calls(
    family: Family,
    tools: Sequence[Tool],
    special: Mapping[str, int],
    thinking: Thinking,
    *,
    several: bool,
    param: str = "tools",
) -> str:
    """A grammar for one call of one of the tools, or `several`, in the family's own syntax.

    Raises InvalidRequest as `structured_answer` does, naming `param`.
    """
    grammar = Grammar(special)
    calls = _calls(family, grammar, tools, param, several=several)
    return grammar.document(f"{_before(family, grammar, thinking)} {calls}")


def compiled_beside(
    tools: Sequence[Tool], special: Mapping[str, int], *, enforced: bool, param: str = "tools"
) -> tuple[str, ...]:
    """Grammars of what these tools take that must compile, though the answer is not held to them:
    of plain text, in the words of the request, and of strict schemas where no call is `enforced`.

    Raises InvalidRequest as `structured_answer` does, naming `param`.
    """
    documents = []
    for tool in tools:
        grammar = Grammar(special)
        if tool.text is not None:
            wanted = AnswerFormat(tool.text.syntax, tool.text.definition, tool.text.param)
            said = _format(grammar, wanted, f" of the tool {tool.name!r}")
            documents.append(grammar.document(said))
        elif tool.strict and not enforced:
            schema = _schema(grammar, tool, param)
            documents.append(grammar.document(grammar.json(schema)))
    return tuple(documents)


def _format(grammar: Grammar, wanted: AnswerFormat, of: str = "") -> str:
    noun = _NOUNS[wanted.kind] + of
    if wanted.kind == "json_schema":
        schema = prepared(wanted.content, wanted.param)
        grammar.came_from(wanted.param, noun, schema)
        return grammar.json(schema)
    grammar.came_from(wanted.param, noun)
    if wanted.kind == "lark":
        return grammar.inner("lark_grammar", wanted.content)
    return grammar.inner("lark_grammar", f"start: /{slashed(wanted.content)}/")


def _calls(
    family: Family, grammar: Grammar, tools: Sequence[Tool], param: str, *, several: bool
) -> str:
    ready = []
    for tool in tools:
        ready.append(replace(tool, parameters=_schema(grammar, tool, param)))
    calls = calls_of(family.form(grammar), ready, several=several)
    return calls if family.name == harmony.NAME else f"{_LINES} {calls}"


def _schema(grammar: Grammar, tool: Tool, param: str) -> dict[str, Any]:
    """Of the tool's arguments, as a grammar should have it."""
    schema: dict[str, Any] = prepared(
        _of_arguments(tool.parameters), param, lenient=not tool.strict
    )
    grammar.came_from(param, f"The schema of the tool {tool.name!r}", schema)
    return schema


def _of_arguments(schema: dict[str, Any]) -> dict[str, Any]:
    """A tool's schema in which no word of arguments means that it takes none."""
    said = schema.keys() - {"type", "title", "description", "$schema", "required"}
    return schema if said else {**schema, "type": "object", "properties": {}}


def _before(family: Family, grammar: Grammar, thinking: Thinking) -> str:
    if family.name == harmony.NAME:
        return harmony.thinking(grammar)
    if thinking == "none":
        return ""
    rest = f"{grammar.text_before(END_OF_THINKING)} {_SPACE}"
    return (
        rest if thinking == "opened" else f"({optional(chr(10))} {grammar.markup(THINK)} {rest})?"
    )


def _lead(family: Family, grammar: Grammar) -> str:
    return harmony.final(grammar) if family.name == harmony.NAME else ""
