"""What comes back for one request, over the link to the runtime."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from engine.messages import Admitted, Finished, RequestFailed, Sampled, StopAt

if TYPE_CHECKING:
    from engine.server.runtime_link import RuntimeLink

RequestEvent = Admitted | Sampled | Finished | RequestFailed


class RequestStream:
    """Events of one request, in order; the last is Finished or RequestFailed."""

    def __init__(self, link: RuntimeLink, request: int) -> None:
        self._link = link
        self.request = request
        self._events: asyncio.Queue[RequestEvent] = asyncio.Queue()
        self.done = False
        self._began = time.monotonic()
        self._sampled_at: float | None = None
        """When the newest token came."""

    def push(self, event: RequestEvent) -> None:
        self._events.put_nowait(event)
        self._measure(event)

    def _measure(self, event: RequestEvent) -> None:
        latencies, now = self._link.latencies, time.monotonic()
        match event:
            case Admitted():
                latencies.queue.observe(now - self._began)
            case Sampled():
                before, self._sampled_at = self._sampled_at, now
                if before is None:
                    latencies.first_token.observe(now - self._began)
                else:
                    latencies.next_token.observe(now - before)
            case Finished(reason="stop" | "length"):
                latencies.request.observe(now - self._began)

    async def next(self) -> RequestEvent:
        event = await self._events.get()
        if isinstance(event, Finished | RequestFailed):
            self.done = True
        return event

    async def __aiter__(self) -> AsyncIterator[RequestEvent]:
        while not self.done:
            yield await self.next()

    async def stop_at(self, keep: int) -> None:
        await self._link.command(StopAt(request=self.request, keep=keep))

    async def cancel(self) -> None:
        """Tell the runtime that nobody waits any more. Safe to call at any time, any number."""
        await self._link.cancel(self.request)
