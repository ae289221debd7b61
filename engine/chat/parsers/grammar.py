"""Grammars as text: what an answer may be, in the Lark dialect that llguidance reads.

Only text is built here. The runtime compiles it, and masks tokens with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from engine.chat.parsers.tools import Tool
from engine.messages import GrammarDocument, GrammarSource

ANYTHING = "/(?s:.*)/"


class Grammar:
    """Rules so far. Its methods return expressions to be put into others."""

    def __init__(self, special: Mapping[str, int]) -> None:
        """`special`: ids of the vocabulary's control tokens by their spellings."""
        self._special = special
        self._rules: list[str] = []
        self._named: dict[str, dict[str, Any]] = {}
        self._sources: list[GrammarSource] = []

    def markup(self, text: str) -> str:
        """Text in which the spellings of control tokens are these tokens."""
        return " ".join(
            f"<[{self._special[part]}]>" if part in self._special else literal(part)
            for part in self._parts(text)
        )

    def rule(self, expression: str, attributes: str = "") -> str:
        name = f"rule_{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {expression}")
        return name

    def terminal(self, expression: str) -> str:
        """One stretch of text: here expressions may be joined with `&`, and negated with `~`."""
        name = f"TEXT_{len(self._rules)}"
        self._rules.append(f"{name}: {expression}")
        return name

    def inner(self, kind: str, content: Any) -> str:
        """A grammar of its own: a `json_schema`, or a `lark_grammar` with a rule `start`."""
        name = f"inner_{len(self._named)}"
        self._named[name] = {kind: content}
        return f"@{name}"

    def json(self, schema: Any) -> str:
        return self.inner("json_schema", schema)

    def text_before(self, closing: str, wanted: str = ANYTHING) -> str:
        """Text up to and with this markup, which closes it where it first stands.

        `wanted`: what the text must be, as an expression for a terminal.
        """
        parts = self._parts(closing)
        before = "" if parts[0] in self._special else parts.pop(0)
        text = f"({wanted}) {literal(before)}" if before else wanted
        if parts:
            return f"{self.terminal(text)} {self.markup(''.join(parts))}"
        if wanted != ANYTHING:
            text = f"(({wanted}) & ~{containing(pattern(before))}) {literal(before)}"
        return self.rule(self.terminal(text), "[lazy]")

    def came_from(self, param: str, what: str, json_schema: Any = None) -> None:
        """Where a fault of this grammar will lie, as in GrammarSource."""
        self._sources.append(GrammarSource(param=param, what=what, json_schema=json_schema))

    def document(self, start: str) -> str:
        """The whole grammar, as in Submit."""
        text = "\n".join([f"start: {start}", *self._rules, ""])
        whole = GrammarDocument(start=text, named=self._named, sources=self._sources)
        return msgspec.json.encode(whole).decode()

    def _parts(self, text: str) -> list[str]:
        """The text cut into spellings of control tokens and what stands between them."""
        found = [spelling for spelling in self._special if spelling and spelling in text]
        found.sort(key=len, reverse=True)
        parts = re.split("(" + "|".join(map(re.escape, found)) + ")", text) if found else [text]
        return [part for part in parts if part]


@dataclass(frozen=True)
class CallForm:
    """How a family's calls are put together, as expressions."""

    call: Callable[[Tool], str]
    begin: str = ""
    """Before the first of them."""
    between: str | None = None
    """Between two of them. None: an answer has one at most."""
    end: str = ""


def literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def pattern(text: str) -> str:
    """Within a regular expression, this text. Between slashes, too."""
    return re.sub(r"([!-/:;=?@\[-^`{-~])", r"\\\1", text).replace("\n", r"\n")


def slashed(expression: str) -> str:
    """A regular expression as it can stand between slashes, on one line."""
    parts = []
    escaped = False
    for char in expression:
        parts.append(r"\/" if char == "/" and not escaped else char)
        escaped = char == "\\" and not escaped
    return "".join(parts).replace("\n", r"\n")


def containing(expression: str) -> str:
    """Any text in which this regular expression has a match."""
    return f"/(?s:.*)({expression})(?s:.*)/"


def optional(text: str) -> str:
    return f"{literal(text)}?"


def calls_of(form: CallForm, tools: Sequence[Tool], *, several: bool) -> str:
    """One call of one of the tools, or `several`."""
    one = "(" + " | ".join(form.call(tool) for tool in tools) + ")"
    more = f"({form.between} {one})*" if several and form.between is not None else ""
    return " ".join(part for part in (form.begin, one, more, form.end) if part)
