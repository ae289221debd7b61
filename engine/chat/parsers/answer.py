"""The common shape of an answer: thinking between tags, text, and tool calls among it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import regex

from engine.chat.parsers.stream import OutputStream, Script, compiled, spaced

THINK = "<think>"
END_OF_THINKING = "</think>"


@dataclass(frozen=True)
class Calls:
    """How a family writes tool calls, as patterns for one stream."""

    header: str
    """From the first markup to where the arguments begin; the group `name` is the tool's. Whatever
    does not have all of it is text."""
    read: Callable[[OutputStream, regex.Match[str]], Script]
    """Consumes the rest of the call whose header matched."""
    between: str | None = None
    """Markup that may follow a call: an end of the block of calls."""


def thinking_opens(stream: OutputStream) -> str:
    """A pattern for the begin of an answer that thinks."""
    return r"\s*+" + stream.mark(THINK)


def thinking_ends(stream: OutputStream) -> str:
    """A pattern for the tag that ends thinking. The header of a call ends it too."""
    return stream.mark(END_OF_THINKING)


def read_answer(stream: OutputStream, calls: Calls | None, *, thinking: bool) -> Script:
    """`thinking`: the prompt ends inside an opened thinking tag.

    A tag that opens thinking counts at the begin of the answer only, because models also write
    about tags. A call ends thinking, because models forget to.
    """
    begin = compiled(thinking_opens(stream) + r"\s*+(?=\S)")
    if (yield from stream.at(begin)):
        thinking = True
    header = spaced(calls.header) if calls else ""
    anything = compiled(header) if calls else None
    if thinking:
        end = spaced(thinking_ends(stream)) + r"(?P<ended>)"
        match = yield from stream.until(
            compiled(f"{end}|{header}" if calls else end), stream.reasoning
        )
        if match is None:
            return
        if match.group("ended") is None and calls is not None:
            yield from _call(stream, calls, match)
        else:
            yield from stream.at(compiled(r"\s*+(?=\S)"))
    while anything is not None and calls is not None:
        match = yield from stream.until(anything, stream.text)
        if match is None:
            return
        yield from _call(stream, calls, match)
    while text := (yield from stream.more()):
        stream.text(text)


def _call(stream: OutputStream, calls: Calls, match: regex.Match[str]) -> Script:
    yield from calls.read(stream, match)
    if calls.between is not None:
        yield from stream.at(compiled(r"\s*+" + calls.between))
