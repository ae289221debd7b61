"""A regular expression for what a text looks like inside a JSON string."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import lru_cache

import regex

from engine.chat.interruption import check

_ESCAPES = {chr(code): json.dumps(chr(code))[1:-1] for code in (*range(0x20), 0x22, 0x5C)}
"""Characters that a JSON string cannot hold as they are (RFC 8259, 7), in their shortest spelling;
others are spelled as they are."""
ESCAPED = frozenset(_ESCAPES)
_PLAIN = r"[^\"\\\x00-\x1F]"
_HEX = regex.compile(r"\\[xuU]\{([0-9a-fA-F]{1,8})\}")
_TOKEN = regex.compile(
    r"""
    (?P<group>\(\?(?:P?<\w++>|(?P<flags>[a-zA-Z-]*+)(?P<whole>[:)])))
    | (?P<structure>[()|*+?^$]|\{\d*+,?+\d*+\})
    | (?P<class>\[)
    | \\(?:[pP](?:\{[^}]*+\}|.)|[xuU]\{[^}]*+\}|x..|u.{4}|U.{8}|.)
    | .
    """,
    regex.VERBOSE | regex.DOTALL,
)
"""In the syntax of Rust's crate `regex`, which llguidance reads."""
_CLASS_PART = regex.compile(
    r"(?:\\.|\[:\^?\w++:\]|[^\[\]\\])++|(?P<opens>\[\^?+\]?+)|(?P<closes>\])", regex.DOTALL
)
_MAX_LEVELS = 64
"""Of classes within classes."""
_CLASSES = ("[", r"\s", r"\S", r"\w", r"\W", r"\d", r"\D", r"\p", r"\P")


def quoted_regex(expression: str, flags: str = "") -> str:
    """An expression that matches the JSON spelling, without the quotes around it, of each text that
    `expression` matches, and nothing else. `flags`: those that stand behind both. Raises ValueError
    for one that cannot be read.
    """
    if "x" in flags:
        raise ValueError("the flag x is not supported here")
    return "".join(_quoted(expression, "s" in flags))


def _quoted(expression: str, dotall: bool) -> Iterator[str]:
    outer: list[bool] = []
    """Whether a dot takes line breaks, around each group that is open."""
    place = 0
    while place < len(expression):
        check()
        token = _TOKEN.match(expression, place)
        if token is None:
            raise ValueError(f"it cannot be read from character {place} on")
        start, place = place, token.end()
        text = token.group()
        if token["group"]:
            if token["whole"] != ")":
                outer.append(dotall)
            dotall = _after(token["flags"] or "", dotall)
            yield text
        elif token["structure"]:
            if text == "(":
                outer.append(dotall)
            elif text == ")" and outer:
                dotall = outer.pop()
            yield text
        else:
            if token["class"]:
                place = _class_end(expression, start)
            yield _atom(expression[start:place], dotall)


def _class_end(expression: str, start: int) -> int:
    levels, place = 0, start
    part: regex.Match[str] | None
    while part := _CLASS_PART.match(expression, place):
        place = part.end()
        levels += bool(part["opens"]) - bool(part["closes"])
        if not levels:
            return int(place)
        if levels > _MAX_LEVELS:
            raise ValueError(f"classes are nested in it deeper than {_MAX_LEVELS} levels")
    raise ValueError(f"the class cannot be read that begins at character {start}")


def _after(flags: str, dotall: bool) -> bool:
    on, _, off = flags.partition("-")
    if "x" in on:
        raise ValueError("the flag x is not supported here")
    return ("s" in on or dotall) and "s" not in off


@lru_cache(256)
def _atom(atom: str, dotall: bool) -> str:
    """What matches one character, or a place between two."""
    if len(atom) == 1 and atom != ".":
        taken = [_ESCAPES[atom]] if atom in _ESCAPES else []
    else:
        matches = _matcher(atom, dotall)
        taken = [escape for char, escape in _ESCAPES.items() if matches(char)]
    if not taken:
        return atom
    spelled = f"(?-i:{'|'.join(regex.escape(each) for each in taken)})"
    if atom == ".":
        return f"(?:{_PLAIN}|{spelled})"
    return f"(?:[{atom}&&{_PLAIN}]|{spelled})" if atom.startswith(_CLASSES) else spelled


def _matcher(atom: str, dotall: bool) -> Callable[[str], object]:
    """As Rust's crate reads the atom, said in the syntax of Python's `regex`."""
    said = _HEX.sub(lambda match: f"\\U{int(match[1], 16):08x}", atom)
    # Python's \\s has the separators U+001C to U+001F, Unicode's White_Space has not.
    spaces = {r"\s": r"\p{White_Space}", r"\S": r"\P{White_Space}"}
    said = regex.sub(r"\\.", lambda match: spaces.get(match[0], match[0]), said, flags=regex.S)
    flags = regex.V1 | (regex.DOTALL if dotall else 0)
    try:
        matches: Callable[[str], object] = regex.compile(said, flags).fullmatch
    except regex.error as error:
        raise ValueError(f"{atom} cannot be read: {error}") from error
    return matches
