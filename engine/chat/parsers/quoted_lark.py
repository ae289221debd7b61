"""A Lark grammar for what a text looks like inside a JSON string.

llguidance quotes regular expressions but no grammars. Quoting is done character by character, so it
is enough to quote what a grammar's strings and regular expressions match.

Its rules become terminals then. Between two terminals llguidance's lexer decides at the first byte
whether the one goes on or the other begins, and never goes back; quoted, whatever has an escape may
begin with the same backslash. Within one terminal there is no such border. Rules that refer to
themselves cannot be terminals: they stay, as long as no border can be mistaken.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Literal

import regex

from engine.chat.interruption import check
from engine.chat.parsers.grammar import pattern
from engine.chat.parsers.quoted_regex import ESCAPED, quoted_regex

_STRING = r'"(?:[^"\\\n]|\\.)*+"'
_TOKEN = regex.compile(
    rf"""
    (?P<comment>(?://|\#)[^\n]*)
    | (?P<import>%import\s++common\s*+(?:\.\s*+(?P<one>\w++)(?:\s*+->\s*+(?P<alias>\w++))?
        | \((?P<several>[\w\s,]*+)\)))
    | (?P<from>{_STRING})\s*+\.\.\s*+(?P<to>{_STRING})
    | (?P<string>{_STRING})(?P<string_flag>i?)
    | /(?P<regex>(?:[^/\\\n]|\\.)++)/(?P<flags>[imslux]*)
    | (?P<open>["/])
    | (?P<repeat>~\s*+\d)
    | (?P<ignore>%ignore\b)
    | (?P<strange>~|<[^>\s]|@\w|%\w*+)
    | (?P<alias_of>->\s*+\w++)
    | (?P<head>[?!]?+(?P<name>[A-Za-z_]\w*+)(?P<more>\s*+(?:\[[^\[\]\n]*+\]|\.\d++))?+\s*+:)
    | (?P<word>[A-Za-z_]\w*+)
    | (?P<rest>\w+|.)
    """,
    regex.VERBOSE | regex.DOTALL,
)
_COMMON = {
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\.)*"',
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"\/\/[^\n]*",
    "SQL_COMMENT": r"--[^\n]*",
    "C_COMMENT": r"\/\*(?:[^*]|\*+[^*\/])*\*+\/",
}
"""Of Lark's terminals `common`, those that have characters to be quoted."""


@dataclass
class _Definition:
    """Of a rule, of a terminal, or of what is ignored between terminals."""

    name: str = ""
    head: str = "%ignore "
    attributed: bool = False
    body: list[tuple[Literal["atom", "name", "other"], str]] = field(default_factory=list)

    @property
    def is_rule(self) -> bool:
        return self.name.lower() == self.name != ""

    def names(self) -> set[str]:
        return {text for kind, text in self.body if kind == "name"}


def quoted_lark(grammar: str) -> str:
    """A grammar of the same texts as JSON strings spell them, without the quotes around them.
    Raises ValueError that says what in it cannot be said so."""
    whole = _Quoted()
    for token in _TOKEN.finditer(grammar):
        check()
        whole.take(token)
    return whole.text()


class _Quoted:
    """A grammar whose strings and regular expressions are quoted."""

    def __init__(self) -> None:
        self._imports: list[str] = []
        self._definitions: list[_Definition] = []
        # Whether, with an escape, a terminal may go on, and one may begin.
        self._goes_on = self._begins = False

    def take(self, token: regex.Match[str]) -> None:
        if token["import"]:
            named = [(token["one"], token["alias"])] if token["one"] else []
            listed = (token["several"] or "").replace(",", " ").split()
            for name, alias in (*named, *((name, None) for name in listed)):
                self._imports.append(_import(name, alias))
                self._takes_escapes(name in _COMMON)
        elif token["ignore"]:
            self._definitions.append(_Definition())
        elif token["head"]:
            if any(mark in token.group() for mark in '"/'):
                raise ValueError(
                    f"{token.group()} cannot stand in it where calls are written as JSON"
                )
            attributed = bool(token["more"])
            self._definitions.append(_Definition(token["name"], token.group(), attributed))
        elif not token["comment"]:
            self._add(token)

    def _add(self, token: regex.Match[str]) -> None:
        definition = self._definitions[-1] if self._definitions else None
        if definition is None:
            if token.group().strip():
                raise ValueError(f"it begins with {token.group()}, which defines nothing")
            return
        if token["word"]:
            definition.body.append(("name", token.group()))
        elif token["from"] or token["string"] or token["regex"]:
            atom = _atom(token)
            definition.body.append(("atom", atom))
            if token["string"] and definition.is_rule:
                escaped = [char in ESCAPED for char in _text(token["string"])]
                self._begins |= escaped[:1] == [True]
                self._goes_on |= any(escaped[1:])
            else:
                self._takes_escapes(atom != token.group())
        else:
            definition.body.append(("other", _other(token)))

    def _takes_escapes(self, it_does: bool) -> None:
        self._begins |= it_does
        self._goes_on |= it_does

    def text(self) -> str:
        if self._is_one_terminal():
            return "\n".join([*self._imports, *self._terminals()])
        if self._begins and self._goes_on:
            raise ValueError(
                "where calls are written as JSON, rules that refer to themselves or have "
                "attributes cannot stand beside line breaks, tabs, quotes or backslashes that "
                "may follow other text"
            )
        rules = (
            "".join([each.head, *(text for _, text in each.body)]) for each in self._definitions
        )
        return "\n".join([*self._imports, *rules])

    def _is_one_terminal(self) -> bool:
        rules = [each for each in self._definitions if each.is_rule]
        if any(each.attributed for each in rules):
            return False
        try:
            TopologicalSorter({each.name: each.names() for each in rules}).prepare()
        except CycleError:
            return False
        return True

    def _terminals(self) -> list[str]:
        """Each rule as a terminal, after each of whose own terminals stands what is ignored."""
        prefix = "RULE_"
        while any(each.name.startswith(prefix) for each in self._definitions):
            prefix += "_"
        rules = [each.name for each in self._definitions if each.is_rule]
        renamed = {name: f"{prefix}{number}" for number, name in enumerate(rules)}
        space = f"{prefix}IGNORED"
        ignored = [
            "".join(text for _, text in d.body).strip() for d in self._definitions if not d.name
        ]
        made = [f"{space}: ({' | '.join(ignored)})*"] if ignored else []
        after = f" {space}" if ignored else ""
        start = renamed.get("start", "start")
        made += [f"start: {prefix}WHOLE", f"{prefix}WHOLE:{after} {start}"]
        for each in self._definitions:
            if each.is_rule:
                body = "".join(
                    text if kind == "other" else renamed.get(text) or f"({text}{after})"
                    for kind, text in each.body
                )
                made.append(f"{renamed[each.name]}: {body}")
            elif each.name:
                made.append("".join([each.head, *(text for _, text in each.body)]))
        return made


def _atom(token: regex.Match[str]) -> str:
    if token["from"]:
        first, last = _one(token["from"]), _one(token["to"])
        return f"/{quoted_regex(f'[{first}-{last}]')}/"
    if token["string"]:
        text = _text(token["string"])
        if token["string_flag"]:
            return f"/{quoted_regex(pattern(text))}/i" if text else '""'
        return json.dumps(json.dumps(text, ensure_ascii=False)[1:-1], ensure_ascii=False)
    flags = token["flags"]
    return f"/{quoted_regex(token['regex'], flags)}/{flags}"


def _other(token: regex.Match[str]) -> str:
    if token["open"]:
        raise ValueError(
            f"what begins at character {token.start()} with {token.group()} has no end"
        )
    if token["strange"]:
        raise ValueError(f"{token.group()} cannot stand in it where calls are written as JSON")
    return "" if token["alias_of"] else str(token.group())


def _import(name: str, alias: str | None) -> str:
    if name in _COMMON:
        return f"{alias or name}: /{quoted_regex(_COMMON[name])}/"
    return f"%import common.{name}{f' -> {alias}' if alias else ''}"


def _one(string: str) -> str:
    text = _text(string)
    if len(text) != 1:
        raise ValueError(f"a range ends at one character, not {string}")
    return f"\\U{ord(text):08X}"


def _text(string: str) -> str:
    try:
        text = str(json.loads(string))
    except ValueError as error:
        raise ValueError(f"{string} is no string: {error}") from error
    if regex.search(r"[\ud800-\udfff]", text):
        raise ValueError(f"{string} has half of a surrogate pair, which is no character")
    return text
