"""Several generations as one stream of events, in the order in which they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from engine.server.generation import GenerationEvent

MAX_CHOICES = 64
"""Answers to one request."""
AHEAD = 64
"""Events that may wait for a slow client before the generations wait too."""

Numbered = tuple[int, GenerationEvent]


async def merged(
    sources: Sequence[AsyncGenerator[GenerationEvent, None]],
) -> AsyncGenerator[Numbered, None]:
    """Each event with the number of its generation.

    The first error of one ends all. Closing the generator closes every source.
    """
    if len(sources) == 1:
        async with aclosing(sources[0]) as only:
            async for event in only:
                yield 0, event
        return
    queue: asyncio.Queue[Numbered | BaseException | None] = asyncio.Queue(AHEAD)

    async def pump(number: int, source: AsyncGenerator[GenerationEvent, None]) -> None:
        end: BaseException | None = None
        try:
            async with aclosing(source):
                async for event in source:
                    await queue.put((number, event))
        except Exception as error:  # noqa: BLE001 - raised again where the events are read
            end = error
        await queue.put(end)

    pumps = [asyncio.create_task(pump(*each)) for each in enumerate(sources)]
    try:
        open_ = len(pumps)
        while open_:
            item = await queue.get()
            if item is None:
                open_ -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
