"""Colours of code that grows: what is above a place where nothing is open is told once."""

from __future__ import annotations

from dataclasses import dataclass

from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.styles import get_style_by_name
from pygments.token import Comment, String, Text, _TokenType
from pygments.util import ClassNotFound

SETTLE_CHARS = 200
MOST_OPEN_CHARS = 800
"""Beyond so many the lines above are settled wherever they stand."""


@dataclass(frozen=True)
class Span:
    text: str
    colour: str = ""
    """#rrggbb, or empty for that of text."""
    bold: bool = False
    italic: bool = False


class CodeSpans:
    """For one language and one pygments style; unknown languages have no colours."""

    def __init__(self, language: str, style: str) -> None:
        self._lexer = _lexer(language)
        self._style = get_style_by_name(style)

    def spans(self, text: str) -> tuple[list[Span], int]:
        """The text in its colours, and how many characters of it are settled: those above a line
        at which code begins anew."""
        if self._lexer is None:
            return [Span(text)], text.rfind("\n") + 1 if len(text) > SETTLE_CHARS else 0
        found: list[Span] = []
        at, settled, before = 0, 0, Text
        for kind, value in self._lexer.get_tokens(text):
            line = at == 0 or text[at - 1 : at] == "\n"
            if line and value[:1].strip() and not _within(before, String, Comment.Multiline):
                settled = at
            found.append(self._span(kind, value))
            at += len(value)
            before = kind if value.strip() or _within(kind, String, Comment) else Text
        if len(text) <= SETTLE_CHARS:
            return found, 0
        return found, settled or (text.rfind("\n") + 1 if len(text) > MOST_OPEN_CHARS else 0)

    def _span(self, kind: _TokenType, value: str) -> Span:
        look = self._style.style_for_token(kind)
        colour = f"#{look['color']}" if look["color"] else ""
        return Span(value, colour, bool(look["bold"]), bool(look["italic"]))


def _within(kind: _TokenType, *groups: _TokenType) -> bool:
    return any(kind[: len(group)] == group for group in groups)


def _lexer(language: str) -> Lexer | None:
    if not language:
        return None
    try:
        lexer: Lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None
    return lexer
