"""A Lark grammar for what a text looks like inside a JSON string.

llguidance quotes regular expressions but no grammars. Quoting is done character by character, so it
is enough to quote what a grammar's strings and regular expressions match; its rules stay.
"""

from __future__ import annotations

import json

import regex

from engine.chat.interruption import check
from engine.chat.parsers.grammar import pattern
from engine.chat.parsers.quoted_regex import quoted_regex

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
    | (?P<strange>~|<[^>\s]|@\w|%(?!ignore\b)\w*)
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


def quoted_lark(grammar: str) -> str:
    """The same grammar of texts as JSON strings spell them, without the quotes around them. Raises
    ValueError that says what in it cannot be said so."""
    return "".join(_quoted(token) for token in _TOKEN.finditer(grammar))


def _quoted(token: regex.Match[str]) -> str:
    check()
    if token["comment"]:
        return ""
    if token["import"]:
        named = [(token["one"], token["alias"])] if token["one"] else []
        listed = (token["several"] or "").replace(",", " ").split()
        return "\n".join(_import(*each) for each in (*named, *((name, None) for name in listed)))
    if token["from"]:
        first, last = _one(token["from"]), _one(token["to"])
        return f"/{quoted_regex(f'[{first}-{last}]')}/"
    if token["string"]:
        text = _text(token["string"])
        if token["string_flag"]:
            return f"/{quoted_regex(pattern(text))}/i" if text else '""'
        return json.dumps(json.dumps(text, ensure_ascii=False)[1:-1], ensure_ascii=False)
    if token["regex"]:
        flags = token["flags"]
        return f"/{quoted_regex(token['regex'], flags)}/{flags}"
    if token["open"]:
        raise ValueError(
            f"what begins at character {token.start()} with {token.group()} has no end"
        )
    if token["strange"]:
        raise ValueError(f"{token.group()} cannot stand in it where calls are written as JSON")
    return str(token.group())


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
