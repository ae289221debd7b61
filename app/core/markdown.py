"""Markdown of a model's answer, as pieces that the chat page can show safely.

Nothing a model writes becomes markup of its own: HTML is shown as text, images are not loaded, and
only web and mail links stay links.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

SAFE_SCHEMES = ("http://", "https://", "mailto:")
MAX_HIGHLIGHT_CHARS = 40_000
_TAG = re.compile(r"<[^>]*>")


@dataclass(frozen=True)
class Prose:
    html: str


@dataclass(frozen=True)
class Code:
    text: str
    language: str
    html: str = ""
    """One line of spans per line of code, colours inline; empty where the code still grows."""


Piece = Prose | Code


def is_safe_link(url: str) -> bool:
    return url.strip().lower().startswith(SAFE_SCHEMES)


class Markdown:
    """Renders for one colour scheme. `style` is a pygments style, `rule` a CSS colour for lines."""

    def __init__(self, *, style: str, inline_code: str, muted: str, rule: str) -> None:
        self._formatter: HtmlFormatter[str] = HtmlFormatter(
            nowrap=True, noclasses=True, style=style
        )
        self._colours = {"inline_code": inline_code, "muted": muted, "rule": rule}
        self._parser = MarkdownIt("commonmark", {"html": False, "linkify": False})
        self._parser.enable(["table", "strikethrough"])
        # markdown-it's `validateLink` names no scheme list of its own that is short enough here.
        self._parser.validateLink = is_safe_link  # type: ignore[method-assign]
        self._renderer = RendererHTML()
        own: dict[str, Any] = {
            "image": _image,
            "code_inline": self._code_inline,
            "table_open": self._table_open,
            "blockquote_open": self._quote_open,
            "fence": self._nested_code,
            "code_block": self._nested_code,
        }
        self._renderer.rules |= own

    def parse(self, text: str) -> list[Token]:
        """Blocks and what is in them. Their `map` has the first line and the one after the last."""
        return self._parser.parse(text)

    def pieces(self, text: str) -> list[Piece]:
        """Prose and top-level code blocks, in order."""
        found: list[Piece] = []
        prose: list[Token] = []
        for token in self.parse(text):
            if token.type in ("fence", "code_block") and token.level == 0:
                self._flush(prose, found)
                found.append(self._code(token))
            else:
                prose.append(token)
        self._flush(prose, found)
        if text.strip() and not any(_is_seen(piece) for piece in found):
            # Markup around nothing, such as a link's definition alone: better seen as it is.
            return [Prose(f"<p>{html.escape(text)}</p>")]
        return found

    def _flush(self, prose: list[Token], found: list[Piece]) -> None:
        if prose:
            body = self._renderer.render(prose, self._parser.options, {})
            found.append(Prose(body.strip()))
            prose.clear()

    def _code(self, token: Token) -> Code:
        language = token.info.strip().split(maxsplit=1)[0] if token.info.strip() else ""
        text = token.content.rstrip("\n")
        return Code(text, language, self.highlight(text, language))

    def highlight(self, text: str, language: str) -> str:
        """Code as HTML spans; plain where the language is unknown or the text very long."""
        if language and len(text) <= MAX_HIGHLIGHT_CHARS:
            try:
                lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
            except ClassNotFound:
                return html.escape(text)
            return str(highlight(text, lexer, self._formatter))
        return html.escape(text)

    def _code_inline(self, tokens: Sequence[Token], at: int, *_: Any) -> str:
        colour = self._colours["inline_code"]
        return f'<code style="color:{colour}">{html.escape(tokens[at].content)}</code>'

    def _nested_code(self, tokens: Sequence[Token], at: int, *_: Any) -> str:
        """A code block inside a list or quote."""
        token = tokens[at]
        language = token.info.strip().split(maxsplit=1)[0] if token.info.strip() else ""
        return f"<pre>{self.highlight(token.content.rstrip(), language)}</pre>"

    def _table_open(self, *_: Any) -> str:
        return (
            f'<table cellspacing="0" cellpadding="6" style="border-collapse:collapse;'
            f'border:1px solid {self._colours["rule"]};margin-top:8px;margin-bottom:12px">'
        )

    def _quote_open(self, *_: Any) -> str:
        return f'<blockquote style="margin-left:16px;color:{self._colours["muted"]}">'


def _is_seen(piece: Piece) -> bool:
    if isinstance(piece, Code) or "<hr" in piece.html:
        return True
    return bool(html.unescape(_TAG.sub("", piece.html)).strip())


def _image(tokens: Sequence[Token], at: int, *_: Any) -> str:
    """An image's description: fetching it would tell a stranger's server of the conversation."""
    token = tokens[at]
    return f"[image: {html.escape(token.content or 'without description')}]"
