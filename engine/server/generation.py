"""One request from prompt tokens to typed events; every protocol maps from these."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from typing import Literal

from engine.chat.detokenizer import Detokenizer
from engine.chat.sampling import for_runtime
from engine.chat.stops import StopStrings
from engine.chat.tokenizer import Tokenizer
from engine.errors import RuntimeDied
from engine.messages import (
    Admitted,
    Finished,
    RequestFailed,
    Sampled,
    Sampling,
    Submit,
    TokenLogprob,
)
from engine.server.runtime_link import RecordedError, RequestStream, RuntimeLink

FIRST_EVENT_S = 2.0
"""How long a stream's HTTP status waits for the runtime's first word: errors should be statuses."""


@dataclass(frozen=True)
class Generation:
    """What to generate, in the engine's own terms."""

    prompt: list[int]
    max_tokens: int
    sampling: Sampling
    stop_tokens: tuple[int, ...]
    stop_strings: tuple[str, ...] = ()
    logprobs: int = -1
    """As in Submit: -1 none, 0 the chosen token's, n and the n likeliest."""


@dataclass(frozen=True)
class TokenText:
    """A sampled token with its place in the output text."""

    token: int
    offset: int
    """Characters of output before it."""
    logprob: float
    top: tuple[TokenLogprob, ...]


@dataclass(frozen=True)
class Started:
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True)
class TextDelta:
    text: str
    tokens: tuple[TokenText, ...] = ()
    """Only where logprobs were asked for."""


@dataclass(frozen=True)
class Ended:
    reason: Literal["stop", "length"]
    stop_string: str | None
    prompt_tokens: int
    completion_tokens: int


GenerationEvent = Started | TextDelta | Ended


@dataclass
class _Output:
    """Text so far: what is shown, what is held back, and the tokens it is made of."""

    detokenizer: Detokenizer
    stops: StopStrings
    wants_tokens: bool
    made: int = 0
    shown: int = 0
    sampled: int = 0
    pending: list[TokenText] = field(default_factory=list)

    def take(self, event: Sampled) -> tuple[TextDelta, str | None]:
        """The text that this token makes certain, and the stop string that it completes."""
        self.sampled += 1
        if self.wants_tokens:
            self.pending.append(
                TokenText(event.token, self.made, event.logprob or 0.0, tuple(event.top))
            )
        text = self.detokenizer.push(event.token)
        self.made += len(text)
        result = self.stops.feed(text)
        return self._delta(result.text), result.matched

    def rest(self) -> TextDelta:
        """What was held back, once the output has ended without a stop string."""
        self.detokenizer.finish()
        tail = self.stops.finish()
        delta = self._delta(tail)
        late, self.pending = tuple(self.pending), []
        return TextDelta(delta.text, delta.tokens + late)

    def _delta(self, text: str) -> TextDelta:
        self.shown += len(text)
        ready = [token for token in self.pending if token.offset < self.shown]
        self.pending = self.pending[len(ready) :]
        return TextDelta(text, tuple(ready))


async def generate(
    link: RuntimeLink, tokenizer: Tokenizer, generation: Generation
) -> AsyncGenerator[GenerationEvent, None]:
    """Started, TextDeltas, Ended. Raises the runtime's typed error when it fails.

    Closing the generator (the client hung up) cancels the request in the runtime.
    """
    stream = await link.submit(
        Submit(
            request=0,
            tokens=generation.prompt,
            max_tokens=generation.max_tokens,
            sampling=for_runtime(generation.sampling),
            stop_tokens=list(generation.stop_tokens),
            logprobs=generation.logprobs,
        )
    )
    output = _Output(
        Detokenizer(tokenizer), StopStrings(generation.stop_strings), generation.logprobs >= 0
    )
    stopped: str | None = None
    try:
        async for event in stream:
            match event:
                case Admitted():
                    yield Started(event.prompt_tokens, event.cached_tokens)
                case Sampled() if stopped is None:
                    delta, stopped = output.take(event)
                    if delta.text or delta.tokens:
                        yield delta
                    if stopped is not None:
                        await _stop(stream, output.sampled)
                case Finished():
                    for last in _last_events(event, output, stopped):
                        yield last
                case RequestFailed():
                    raise RecordedError(event.error)
    finally:
        if not stream.done:
            await stream.cancel()


async def _stop(stream: RequestStream, keep: int) -> None:
    # A runtime that just died has told the stream so; that is the error to report.
    with contextlib.suppress(ConnectionError):
        await stream.stop_at(keep)


def _last_events(event: Finished, output: _Output, stopped: str | None) -> list[GenerationEvent]:
    if event.reason == "cancelled":
        raise RuntimeDied("The runtime cancelled the request.")
    events: list[GenerationEvent] = []
    if stopped is None:
        rest = output.rest()
        if rest.text or rest.tokens:
            events.append(rest)
    # A stop string that the last allowed token completed is still a stop.
    reason = "stop" if stopped is not None else event.reason
    # The runtime may have finished before it read of the stop: what it made after is not counted.
    made = event.completion_tokens
    if stopped is not None:
        made = min(made, output.sampled)
    events.append(Ended(reason, stopped, event.prompt_tokens, made))
    return events


@dataclass(frozen=True)
class Completed:
    text: str
    tokens: tuple[TokenText, ...]
    started: Started
    ended: Ended


async def collect(events: AsyncIterator[GenerationEvent]) -> Completed:
    """All of a generation's events as one answer."""
    texts: list[str] = []
    tokens: list[TokenText] = []
    started = Started(0, 0)
    async for event in events:
        match event:
            case Started():
                started = event
            case TextDelta():
                texts.append(event.text)
                tokens += event.tokens
            case Ended():
                return Completed("".join(texts), tuple(tokens), started, event)
    raise RuntimeDied("The runtime ended without finishing the request.")


class Opened:
    """A generation's events from the first one on. Whether read or not, it must be closed.

    No generator: closing one that was never begun runs nothing of it, and the request would go on.
    """

    def __init__(
        self,
        first: asyncio.Future[GenerationEvent],
        events: AsyncGenerator[GenerationEvent, None],
    ) -> None:
        self._first: asyncio.Future[GenerationEvent] | None = first
        self._events = events

    def __aiter__(self) -> Opened:
        return self

    async def __anext__(self) -> GenerationEvent:
        if self._first is None:
            return await anext(self._events)
        event = await self._first
        self._first = None
        return event

    async def aclose(self) -> None:
        if self._first is not None and not self._first.done():
            self._first.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._first
        await self._events.aclose()


async def opened(
    events: AsyncGenerator[GenerationEvent, None], patience_s: float = FIRST_EVENT_S
) -> Opened:
    """The same events, after waiting a little for the first: an early error is raised here.

    Once a stream's first byte is out its status is 200, whatever happens then.
    """
    first = asyncio.ensure_future(anext(events))
    source = Opened(first, events)
    try:
        await asyncio.wait({first}, timeout=patience_s)
    except asyncio.CancelledError:
        await source.aclose()
        raise
    if first.done():
        first.result()
    return source
