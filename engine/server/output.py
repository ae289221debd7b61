"""What a client sees of sampled tokens: text up to a stop string, reasoning, calls, logprobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from engine.chat.detokenizer import Detokenizer
from engine.chat.parsers.events import (
    CallArguments,
    CallClosed,
    CallOpened,
    OutputEvent,
    OutputParser,
    Reasoning,
    Text,
)
from engine.chat.stops import StopStrings
from engine.messages import Sampled, TokenLogprob
from engine.server.call_arguments import arguments_object


@dataclass(frozen=True, slots=True)
class TokenText:
    """A sampled token with its place in the answer's text."""

    token: int
    offset: int
    """Characters of text before it."""
    logprob: float
    top: tuple[TokenLogprob, ...]
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Delta:
    """What a token made certain."""

    events: tuple[OutputEvent, ...]
    tokens: tuple[TokenText, ...] = ()
    """Of the text, and only where logprobs were asked for."""

    def __bool__(self) -> bool:
        return bool(self.events or self.tokens)

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, Text))


class Output:
    """One answer as it grows. Where it is held to calls it ends with one that repeats another.
    Stop strings are looked for in its text, not in reasoning or calls,
    and not across a call: there the text that a client sees is interrupted."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: StopStrings,
        parser: OutputParser | None,
        *,
        wants_tokens: bool,
        one_call: bool,
        only_calls: bool,
    ) -> None:
        self._detokenizer = detokenizer
        self._stops = stops
        self._parser = parser
        self._wants_tokens = wants_tokens
        self._one_call = one_call
        self._only_calls = only_calls
        self._made = 0
        self._shown = 0
        self._undecided: list[TokenText] = []
        """Tokens of which nothing is known yet: markup, or text that is held back."""
        self._pending: list[TokenText] = []
        """Tokens of text that is not shown yet."""
        self._unread = 0
        """Tokens since the parser last said anything."""
        self._calls = self._complete = 0
        self._call: list[str] = []
        """Where calls must be made: the newest one's name and the parts of its arguments."""
        self._made_calls: set[tuple[str, bytes]] = set()
        self.sampled = 0
        self.reasoning_tokens = 0
        self.stop_string: str | None = None
        self._over = False
        self._between = False
        """Whether the newest event was no text."""
        self._blank = ""
        """White space since then."""

    def is_over(self) -> bool:
        """Whether what follows is not part of the answer."""
        return self._over

    @property
    def calls_complete(self) -> bool:
        """Whether there are calls, and none is cut off or broken."""
        return 0 < self._calls == self._complete

    def take(self, event: Sampled) -> Delta:
        self.sampled += 1
        self._unread += 1
        if self._wants_tokens:
            size = len(self._detokenizer.token_bytes(event.token))
            self._undecided.append(
                TokenText(event.token, self._made, event.logprob or 0.0, tuple(event.top), size)
            )
        if self._parser is not None:
            return self._delta(self._parser.feed(self._detokenizer.piece(event.token)))
        text = self._detokenizer.push(event.token)
        return self._delta([Text(text)] if text else [])

    def rest(self) -> Delta:
        """What was held back, once the output has ended by itself."""
        self._detokenizer.finish()
        late = self._delta(self._parser.finish() if self._parser is not None else [])
        if self._over:
            return late
        self._drop_margin()
        tail = self._stops.finish()
        shown = self._reveal([Text(tail)] if tail else [])
        if self._parser is None:
            self._pending += self._undecided
        return Delta(late.events + shown.events, (*late.tokens, *shown.tokens, *self._pending))

    def _delta(self, events: list[OutputEvent]) -> Delta:
        if self._only_calls:
            events = [event for event in events if not isinstance(event, Text)]
        if events:
            self._decide(events)
        shown: list[OutputEvent] = []
        for event in events:
            if isinstance(event, Text):
                text = self._margin(event.text)
                self._made += len(text)
                result = self._stops.feed(text)
                if result.text:
                    shown.append(Text(result.text))
                if result.matched is not None:
                    self.stop_string, self._over = result.matched, True
                    break
                continue
            self._drop_margin()
            self._between = True
            if held := self._stops.finish():
                shown.append(Text(held))
            shown.append(event)
            if isinstance(event, CallOpened):
                self._calls += 1
                self._call = [event.name]
            elif isinstance(event, CallArguments) and self._only_calls:
                self._call.append(event.text)
            elif isinstance(event, CallClosed):
                self._complete += event.complete
                if self._one_call or (self._only_calls and self._repeats()):
                    self._over = True
                    break
        return self._reveal(shown)

    def _repeats(self) -> bool:
        """Whether calls that must be made have begun again: small models go on so for ever."""
        name, *parts = self._call
        arguments = arguments_object("".join(parts))
        call = name, msgspec.json.encode(arguments, order="deterministic")
        repeated = call in self._made_calls
        self._made_calls.add(call)
        return repeated

    def _margin(self, text: str) -> str:
        """The text, with white space before it; white space after reasoning or a call that no
        text follows is the markup's, not the answer's."""
        if not self._between:
            return text
        self._blank += text
        if not self._blank.strip():
            return ""
        text, self._blank, self._between = self._blank, "", False
        return text

    def _drop_margin(self) -> None:
        if self._blank:
            self._blank = ""
            self._pending = [token for token in self._pending if token.offset < self._made]

    def _decide(self, events: list[OutputEvent]) -> None:
        """Say of the tokens that led to these events whether they are text."""
        text = sum(len(event.text.encode()) for event in events if isinstance(event, Text))
        if any(isinstance(event, Reasoning) for event in events):
            self.reasoning_tokens += self._unread
        self._unread = 0
        if text:
            self._pending += _last(self._undecided, text) if self._parser else self._undecided
        self._undecided = []

    def _reveal(self, events: list[OutputEvent]) -> Delta:
        self._shown += sum(len(event.text) for event in events if isinstance(event, Text))
        if not self._pending:
            return Delta(tuple(events))
        ready = tuple(token for token in self._pending if token.offset < self._shown)
        self._pending = self._pending[len(ready) :]
        return Delta(tuple(events), ready)


def _last(tokens: Sequence[TokenText], nbytes: int) -> Sequence[TokenText]:
    """The last tokens that together have so many bytes: markup may stand before a text."""
    start = len(tokens)
    while start and nbytes > 0:
        start -= 1
        nbytes -= tokens[start].nbytes
    return tokens[start:]
