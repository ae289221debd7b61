"""Answers of one or several choices over HTTP, whole or as a stream of chunks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from engine.errors import HeadraceError
from engine.messages import Sampling
from engine.server.choices import Numbered, merged
from engine.server.collected import collect_all
from engine.server.generation import Ended, GenerationEvent, Opened, Started, opened
from engine.server.http import HUNG_UP, EventStream, json_response, openai_error, unless_hung_up
from engine.server.openai_answers import Answer
from engine.server.output import Delta
from engine.server.service import Service


async def respond(
    service: Service,
    request: Request,
    sources: Sequence[AsyncGenerator[GenerationEvent, None]],
    answer: Answer,
    *,
    stream: bool,
    usage_wanted: bool,
) -> Response:
    """The choices in the order of `sources`."""
    events = merged(sources)
    if stream:
        source = await opened(events)
        frames = _frames(service, source, answer, len(sources), usage_wanted=usage_wanted)
        return EventStream(frames, source=source)
    with service.served():
        async with aclosing(events):
            done = await unless_hung_up(request, collect_all(events, len(sources)))
    if done is None:
        return Response(status_code=HUNG_UP)
    return json_response(answer.whole(done))


def seeded(sampling: Sampling, choice: int) -> Sampling:
    """Choices of one prompt differ under a seed too."""
    if sampling.seed is None or not choice:
        return sampling
    return msgspec.structs.replace(sampling, seed=(sampling.seed + choice) % (1 << 63))


async def _frames(
    service: Service, events: Opened[Numbered], answer: Answer, choices: int, *, usage_wanted: bool
) -> AsyncIterator[bytes]:
    # Where usage is wanted every chunk has the field, and the last one has it filled.
    extra = {"usage": None} if usage_wanted else {}
    started = [Started(0, 0)] * choices
    ended: dict[int, Ended] = {}
    with service.served():
        async with aclosing(events):
            try:
                for index in range(choices):
                    for chunk in answer.opening(index):
                        yield data({**chunk, **extra})
                async for index, event in events:
                    match event:
                        case Started():
                            started[index] = event
                        case Delta():
                            for chunk in answer.deltas(index, event):
                                yield data({**chunk, **extra})
                        case Ended():
                            ended[index] = event
                            yield data({**answer.ending(index, event), **extra})
                if usage_wanted:
                    counts = [(started[index], ended[index]) for index in range(choices)]
                    yield data(answer.usage_chunk(counts))
                yield b"data: [DONE]\n\n"
            except HeadraceError as error:
                # Without [DONE], because the answer is not complete.
                yield data(openai_error(error))


def data(content: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(content) + b"\n\n"
