"""Markdown of an answer that is still being written.

Reading all of it anew at every piece that comes would take longer the longer it is. What can no
longer change is therefore read once: blocks that another one follows, whole lines of open code,
and, of a block that goes on and on, what is above its last line or word.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from markdown_it.token import Token

from app.core.markdown import Code, Markdown, Piece

READ_CHARS = 700
"""So much is read at once, and so much stays open at most."""
_FREEZE_CHARS = 250
"""Blocks are put together up to this size, so that pieces are few."""
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)$")
_LINE_START = re.compile(r"\n(?=\S)")


@dataclass
class _OpenCode:
    fence: str
    language: str
    lines: list[str]


class GrowingMarkdown:
    """Pieces of one text, which only grows. `pieces` has them all, the last ones open."""

    def __init__(self, markdown: Markdown) -> None:
        self._markdown = markdown
        self._read = 0
        """Up to this character nothing changes any more."""
        self._closed: list[Piece] = []
        self._code: _OpenCode | None = None
        self._lead = ""
        """What has to stand before the next part for it to mean the same: a table's head."""
        self.pieces: list[Piece] = []
        self.taken = 0
        """Characters that are in `pieces`."""
        self.work = 0
        """Characters that were read, some of them more than once."""

    def grow(self, text: str) -> int:
        """Take in more of the text: up to READ_CHARS beyond what is closed. Returns from which
        piece on they are new. `taken` says whether there is more."""
        kept = len(self._closed)
        if self._code is not None:
            kept -= 1
            self._read_code(text)
        else:
            self._read_blocks(text)
        return max(0, kept)

    def _read_blocks(self, text: str) -> None:
        part = text[self._read : self._read + READ_CHARS]
        last = self._read + len(part) == len(text)
        tokens = self._markdown.parse(self._lead + part)
        self.work += len(part)
        lines = (self._lead + part).splitlines(keepends=True)
        starts = [t.map[0] for t in tokens if t.level == 0 and t.map and t.nesting >= 0]
        opening = next((t for t in reversed(tokens) if t.level == 0 and t.map), None)
        cut = 0
        if opening is not None and opening.type == "fence" and _is_open(opening, lines):
            cut = sum(map(len, lines[: starts[-1]])) - len(self._lead)
            if self._begin_code(part, max(0, cut), text):
                return
        elif len(starts) > 1 and _is_whole(lines, starts[-1]):
            cut = sum(map(len, lines[: starts[-1]])) - len(self._lead)
        if cut < _FREEZE_CHARS and (not last or len(part) == READ_CHARS):
            cut = max(cut, self._cut_within(part))
        if cut >= _FREEZE_CHARS:
            self._close(part[:cut])
            self._lead = _table_head(lines, starts) if len(starts) == 1 else ""
            part = part[cut:]
        self.taken = self._read + len(part)
        rest = self._markdown.pieces(self._lead + part) if part.strip() else []
        self.pieces = [*self._closed, *rest]

    def _close(self, part: str) -> None:
        """Of this nothing changes any more."""
        self._closed += self._markdown.pieces(self._lead + part) if part.strip() else []
        self._read += len(part)
        self._lead = ""

    def _cut_within(self, part: str) -> int:
        """Where a block that is too long can be divided: at a line that begins one, or a word."""
        ends = [match.start() + 1 for match in _LINE_START.finditer(part)]
        if ends and ends[-1] >= _FREEZE_CHARS:
            return ends[-1]
        blank = part.rfind(" ") + 1
        return blank if blank >= _FREEZE_CHARS else len(part)

    # --- open code ---

    def _begin_code(self, part: str, cut: int, text: str) -> bool:
        """Whether a fence opens there, by itself and with its line whole."""
        line, end, _ = part[cut:].partition("\n")
        match = _FENCE.match(line)
        if match is None or not end:
            return False
        if cut:
            self._close(part[:cut])
        self._lead = ""
        self._read += len(line) + 1
        words = match[2].split(maxsplit=1)
        self._code = _OpenCode(match[1], words[0] if words else "", [])
        self._closed.append(Code("", self._code.language))
        self._read_code(text)
        return True

    def _read_code(self, text: str) -> None:
        code = self._code
        assert code is not None
        limit = self._read + READ_CHARS
        while (end := text.find("\n", self._read, limit)) >= 0 or limit < len(text):
            end = end if end >= 0 else limit
            line = text[self._read : end]
            self.work += len(line)
            self._read = min(end + 1, len(text)) if text[end] == "\n" else end
            if _closes(line, code.fence):
                self._put_code(code, "")
                self._code = None
                self.taken = self._read
                self.pieces = [*self._closed]
                return
            code.lines.append(line + ("\n" if text[end] == "\n" else ""))
            if self._read >= limit:
                break
        tail = text[self._read : limit]
        self.taken = self._read + len(tail)
        self._put_code(code, "" if tail.strip(" ") and not tail.strip(" `~") else tail)
        self.pieces = [*self._closed]

    def _put_code(self, code: _OpenCode, tail: str) -> None:
        whole = "".join(code.lines)
        code.lines = [whole]
        self._closed[-1] = Code((whole + tail).rstrip("\n"), code.language)


def _closes(line: str, fence: str) -> bool:
    match = _FENCE.match(line)
    return match is not None and match[1].startswith(fence) and not match[2].strip()


def _is_open(token: Token, lines: list[str]) -> bool:
    """Whether this fence, the last block, has no end yet."""
    first, after = token.map or (0, 0)
    return after - first < 2 or not _closes(lines[after - 1].rstrip("\n"), token.markup)


def _is_whole(lines: list[str], start: int) -> bool:
    """Whether a block that starts here has a whole line: else what it is can still change, and with
    it whether the one above has ended."""
    return lines[start].endswith("\n")


def _table_head(lines: list[str], starts: list[int]) -> str:
    head = lines[starts[0] : starts[0] + 2]
    if len(head) == 2 and "|" in head[0] and re.fullmatch(r"[\s|:-]*-[\s|:-]*", head[1]):
        return "".join(head)
    return ""
