"""Output that arrives in pieces, read by a script as if it were all there.

A family's parser is a generator function, its script: it asks the stream for the next pattern and
is suspended until enough output has come to answer. Patterns are those of the `regex` library,
whose partial matches tell text that may yet become markup from text that cannot.

A pattern must end in something fixed or in a lookahead, never in an optional part: whether that
part belongs to the match would depend on how the output was cut.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator

import regex

from engine.chat.parsers.events import (
    CallArguments,
    CallClosed,
    CallOpened,
    OutputEvent,
    Piece,
    Reasoning,
    Text,
)

Script = Generator[None, None, None]
Waiting = Generator[None, None, "regex.Match[str] | None"]
Emit = Callable[[str], None]

PATIENT_CHARS = 2048

# Output is UTF-8, so a surrogate stands for a control token in the buffer and can be nothing else.
_FIRST_SURROGATE = 0xD800


class OutputStream:
    """The output so far, less what the script has consumed, and the events it has emitted."""

    def __init__(self, special: Collection[str]) -> None:
        """`special`: spellings of the vocabulary's control tokens."""
        self._special = special
        self._marks: dict[str, str] = {}
        self._buffer = ""
        self._events: list[OutputEvent] = []
        self._calls = 0
        self.ended = False

    # for scripts: what to look for

    def mark(self, spelling: str) -> str:
        """A pattern for this markup. A control token where the vocabulary has one, else text."""
        if spelling not in self._special:
            return str(regex.escape(spelling, literal_spaces=True))
        if spelling not in self._marks:
            self._marks[spelling] = chr(_FIRST_SURROGATE + len(self._marks))
        return self._marks[spelling]

    @property
    def marks(self) -> tuple[str, ...]:
        """Spellings of the control tokens asked for so far; U+D800 is the first, and so on."""
        return tuple(self._marks)

    def until(self, pattern: regex.Pattern[str], emit: Emit) -> Waiting:
        """Emit what lies before the pattern and consume it; None once the output has ended."""
        while True:
            match = self._first(pattern)
            before = len(self._buffer) if match is None else match.start()
            if before:
                emit(self._take(before))
            if match is not None and not match.partial:
                self._take(match.end() - match.start())
                return match
            if self.ended:
                return None
            yield from self._growth()

    def at(self, pattern: regex.Pattern[str]) -> Waiting:
        """Consume the pattern if the output goes on with it."""
        while True:
            match = pattern.match(self._buffer, partial=not self.ended)
            if match is None:
                return None
            if not match.partial:
                self._take(match.end())
                return match
            yield from self._growth()

    def more(self) -> Generator[None, None, str]:
        """All output that is there, at least a character; "" once it has ended."""
        while not self._buffer and not self.ended:
            yield
        return self._take(len(self._buffer))

    def give_back(self, text: str) -> None:
        """Put text that `more` gave too much of in front again."""
        self._buffer = text + self._buffer

    # for scripts: what it means

    def text(self, text: str) -> None:
        self._events.append(Text(self.spelled(text)))

    def reasoning(self, text: str) -> None:
        self._events.append(Reasoning(self.spelled(text)))

    def open_call(self, name: str) -> int:
        index, self._calls = self._calls, self._calls + 1
        self._events.append(CallOpened(index, self.spelled(name)))
        return index

    def arguments(self, index: int, text: str) -> None:
        self._events.append(CallArguments(index, self.spelled(text)))

    def close_call(self, index: int, *, complete: bool) -> None:
        self._events.append(CallClosed(index, complete))

    def spelled(self, text: str) -> str:
        """The text with control tokens as they are spelled."""
        for spelling, mark in self._marks.items():
            if mark in text:
                text = text.replace(mark, spelling)
        return text

    # for the parser

    def push(self, piece: Piece) -> None:
        """Control tokens that no script asked for have no text, as everywhere."""
        self._buffer += self._marks.get(piece.text, "") if piece.control else piece.text

    def drain(self) -> list[OutputEvent]:
        events, self._events = self._events, []
        return events

    def _growth(self) -> Script:
        """Wait for more. Much that is held back is looked at again only when it has grown by a
        part of itself, or a long wait would cost the square of its length."""
        held = len(self._buffer)
        enough = held + (held // 16 if held > PATIENT_CHARS else 0)
        yield
        while len(self._buffer) <= enough and not self.ended:
            yield

    def _first(self, pattern: regex.Pattern[str]) -> regex.Match[str] | None:
        """The leftmost match, be it a partial one: a search alone prefers whole matches."""
        if self.ended:
            return pattern.search(self._buffer)
        match = pattern.search(self._buffer, partial=True)
        if match is None or match.partial:
            return match
        for position in range(match.start()):
            earlier = pattern.match(self._buffer, position, partial=True)
            if earlier is not None:
                return earlier
        return match

    def _take(self, count: int) -> str:
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken


class ScriptedParser:
    """Runs a script as an OutputParser."""

    def __init__(
        self, script: Callable[[OutputStream], Script], special: Collection[str] = ()
    ) -> None:
        self._stream = OutputStream(special)
        self._script = script(self._stream)
        next(self._script, None)

    def feed(self, piece: Piece) -> list[OutputEvent]:
        self._stream.push(piece)
        next(self._script, None)
        return self._stream.drain()

    def finish(self) -> list[OutputEvent]:
        self._stream.ended = True
        for _ in self._script:
            pass
        return self._stream.drain()


def compiled(pattern: str) -> regex.Pattern[str]:
    return regex.compile(pattern, regex.DOTALL)


def spaced(pattern: str) -> str:
    """The pattern with all white space before it; linear in the length of that."""
    return r"(?<!\s)\s*+" + f"(?:{pattern})"
