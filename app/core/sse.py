"""Server-sent events, from bytes that arrive in any pieces."""

from __future__ import annotations

from dataclasses import dataclass

MAX_EVENT_BYTES = 16 << 20


@dataclass(frozen=True)
class ServerEvent:
    data: str
    name: str = ""


class EventParser:
    """Feed it what arrives; it returns the events that are complete.

    Follows the event-stream format of the HTML standard: lines end in LF, CR or CRLF, comments
    start with a colon, several data lines are joined by LF, an empty line ends the event.
    Raises ValueError when one event grows beyond all measure.
    """

    def __init__(self) -> None:
        self._pending = b""
        self._data: list[str] = []
        self._size = 0
        self._name = ""

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        self._pending += chunk
        if len(self._pending) + self._size > MAX_EVENT_BYTES:
            raise ValueError(f"an event of the stream exceeds {MAX_EVENT_BYTES} bytes")
        events: list[ServerEvent] = []
        while (line := self._next_line()) is not None:
            if event := self._take(line):
                events.append(event)
        return events

    def _next_line(self) -> bytes | None:
        ends = [at for at in (self._pending.find(b"\n"), self._pending.find(b"\r")) if at >= 0]
        if not ends:
            return None
        at = min(ends)
        after = at + 1
        if self._pending[at : at + 1] == b"\r":
            if after == len(self._pending):
                return None  # the LF of a CRLF may come with the next piece
            if self._pending[after : after + 1] == b"\n":
                after += 1
        line, self._pending = self._pending[:at], self._pending[after:]
        return line

    def _take(self, line: bytes) -> ServerEvent | None:
        if not line:
            event = ServerEvent("\n".join(self._data), self._name) if self._data else None
            self._data, self._name, self._size = [], "", 0
            return event
        field, _, value = line.decode("utf-8", "replace").partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
            self._size += len(line)
        elif field == "event":
            self._name = value
        return None
