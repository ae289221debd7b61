"""One request from prompt tokens to typed events; every protocol maps from these."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from engine.chat.detokenizer import Detokenizer
from engine.chat.parsers.events import OutputParser
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
    ThinkingBudget,
)
from engine.server.output import Delta, Output
from engine.server.recording import current
from engine.server.request_stream import RequestStream
from engine.server.runtime_link import RecordedError, RuntimeLink

T = TypeVar("T")

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
    parser: Callable[[], OutputParser] | None = None
    """Makes what tells text, reasoning and calls apart; None: all output is text."""
    grammar: str = ""
    """As in Submit: what the output may be."""
    thinking: ThinkingBudget | None = None
    """As in Submit: how much may be thought."""
    one_call: bool = False
    """The answer ends after its first tool call."""
    only_calls: bool = False
    """The grammar allows nothing but calls: text is a call's markup that was cut off."""


@dataclass(frozen=True)
class Started:
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True)
class Ended:
    reason: Literal["stop", "length", "tool_calls"]
    """`tool_calls`: every call is complete, and nothing cut the answer."""
    stop_string: str | None
    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int = 0
    """Of the completion's tokens, those that the client sees as reasoning."""


GenerationEvent = Started | Delta | Ended


async def generate(
    link: RuntimeLink, tokenizer: Tokenizer, generation: Generation
) -> AsyncGenerator[GenerationEvent, None]:
    """Started, Deltas, Ended. Raises the runtime's typed error when it fails.

    Closing the generator (the client hung up) cancels the request in the runtime.
    """
    recording = current()
    notes = recording.generation(generation.prompt) if recording else None
    stream = await link.submit(
        Submit(
            request=0,
            tokens=generation.prompt,
            max_tokens=generation.max_tokens,
            sampling=for_runtime(generation.sampling),
            stop_tokens=list(generation.stop_tokens),
            logprobs=generation.logprobs,
            grammar=generation.grammar,
            thinking=generation.thinking,
        )
    )
    output = Output(
        Detokenizer(tokenizer),
        StopStrings(generation.stop_strings),
        generation.parser() if generation.parser is not None else None,
        wants_tokens=generation.logprobs >= 0,
        one_call=generation.one_call,
        only_calls=generation.only_calls,
    )
    try:
        async for event in stream:
            match event:
                case Admitted():
                    if notes:
                        notes.admitted(event.cached_tokens)
                    yield Started(event.prompt_tokens, event.cached_tokens)
                case Sampled() if not output.is_over():
                    if notes:
                        notes.sampled(event.token)
                    delta = output.take(event)
                    if delta:
                        yield delta
                    if output.is_over():
                        await _stop(stream, output.sampled)
                case Finished():
                    for last in _last_events(event, output):
                        if notes and isinstance(last, Ended):
                            notes.ended(last.reason)
                        yield last
                case RequestFailed():
                    if notes:
                        notes.ended(event.error.code)
                    raise RecordedError(event.error)
    finally:
        if not stream.done:
            await stream.cancel()


async def _stop(stream: RequestStream, keep: int) -> None:
    # A runtime that just died has told the stream so; that is the error to report.
    with contextlib.suppress(ConnectionError):
        await stream.stop_at(keep)


def _last_events(event: Finished, output: Output) -> list[GenerationEvent]:
    if event.reason == "cancelled":
        raise RuntimeDied("The runtime cancelled the request.")
    events: list[GenerationEvent] = []
    made = event.completion_tokens
    over = output.is_over()
    if over:
        # The runtime may have finished before it read of the stop: what it made after is not
        # counted.
        made = min(made, output.sampled)
    else:
        rest = output.rest()
        if rest:
            events.append(rest)
    # A stop string that the last allowed token completed is still a stop.
    stopped = over or output.stop_string is not None
    reason: Literal["stop", "length", "tool_calls"] = "stop" if stopped else event.reason
    if reason == "stop" and output.calls_complete:
        reason = "tool_calls"
    ended = Ended(reason, output.stop_string, event.prompt_tokens, made, output.reasoning_tokens)
    return [*events, ended]


class Opened(Generic[T]):
    """A generation's events from the first one on. Whether read or not, it must be closed.

    No generator: closing one that was never begun runs nothing of it, and the request would go on.
    """

    def __init__(
        self,
        first: asyncio.Future[T],
        events: AsyncGenerator[T, None],
    ) -> None:
        self._first: asyncio.Future[T] | None = first
        self._events = events

    def __aiter__(self) -> Opened[T]:
        return self

    async def __anext__(self) -> T:
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


async def opened(events: AsyncGenerator[T, None], patience_s: float = FIRST_EVENT_S) -> Opened[T]:
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
