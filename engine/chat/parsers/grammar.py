"""Grammars as text: what an answer may be, in the Lark dialect that llguidance reads.

Only text is built here. The runtime compiles it, and masks tokens with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.chat.parsers.tools import Tool
from engine.chat.parsers.typed_arguments import parameter_types


class Grammar:
    """Rules so far. Its methods return expressions to be put into others."""

    def __init__(self, special: Mapping[str, int]) -> None:
        """`special`: ids of the vocabulary's control tokens by their spellings."""
        self._special = special
        self._rules: list[str] = []

    def mark(self, spelling: str) -> str:
        """Markup: a control token where the vocabulary has one, else text."""
        number = self._special.get(spelling)
        return literal(spelling) if number is None else f"<[{number}]>"

    def rule(self, expression: str, attributes: str = "") -> str:
        name = f"rule_{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {expression}")
        return name

    def json(self, schema: Any) -> str:
        return self.rule(f"%json {json.dumps(schema, ensure_ascii=False)}")

    def text_before(self, spelling: str) -> str:
        """Any text up to and with this markup."""
        if spelling in self._special:
            return f"{self.rule('/(?s:.*)/')} {self.mark(spelling)}"
        return self.rule("/(?s:.*)/", f"[suffix={literal(spelling)}]")

    def text(self, start: str) -> str:
        """The whole grammar."""
        return "\n".join(["%llguidance {}", f"start: {start}", *self._rules, ""])


@dataclass(frozen=True)
class CallForm:
    """How a family's calls are put together, as expressions."""

    call: Callable[[Tool], str]
    begin: str = ""
    """Before the first of them."""
    between: str = ""
    end: str = ""


def literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def calls_of(form: CallForm, tools: Sequence[Tool], *, several: bool) -> str:
    """One call of one of the tools, or `several`."""
    one = "(" + " | ".join(form.call(tool) for tool in tools) + ")"
    more = f"({form.between} {one})*" if several else ""
    return " ".join(part for part in (form.begin, one, more, form.end) if part)


def tagged_parameters(
    grammar: Grammar, tool: Tool, before: Callable[[str, bool], str], after: str
) -> str:
    """Parameters that stand one by one between tags, in the order of the schema.

    `before(name, text)` opens a parameter, whose value is plain text or else JSON; `after` is the
    markup that closes it, a spelling.
    """
    schema = tool.parameters
    properties = schema.get("properties")
    required = schema.get("required")
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    parts = []
    for name, declared in (properties if isinstance(properties, dict) else {}).items():
        text = "string" in parameter_types(schema, name)
        if not text:
            value = f"{grammar.json({**shared, **declared})} {literal(after)}"
        elif isinstance(declared, dict) and isinstance(declared.get("enum"), list):
            choices = [each for each in declared["enum"] if isinstance(each, str)]
            value = f"({' | '.join(map(literal, choices))}) {literal(after)}"
        else:
            value = grammar.text_before(after)
        part = f"{before(name, text)} {value}"
        mandatory = isinstance(required, list) and name in required
        parts.append(part if mandatory else f"({part})?")
    return " ".join(parts)
