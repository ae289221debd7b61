"""A generation's events as one whole answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from engine.errors import RuntimeDied
from engine.server.blocks import Block, Blocks
from engine.server.choices import Numbered
from engine.server.generation import Ended, GenerationEvent, Started
from engine.server.output import Delta, TokenText


@dataclass
class Completed:
    started: Started
    ended: Ended
    blocks: list[Block]
    tokens: list[TokenText]
    """Of the text, and only where logprobs were asked for."""

    def joined(self, kind: str) -> str:
        return "".join(block.content for block in self.blocks if block.kind == kind)

    @property
    def text(self) -> str:
        return self.joined("text")

    @property
    def calls(self) -> list[Block]:
        return [block for block in self.blocks if block.kind == "call"]


class Collector:
    """Takes one generation's events until it has ended."""

    def __init__(self) -> None:
        self.started = Started(0, 0)
        self._blocks = Blocks()
        self._tokens: list[TokenText] = []
        self.completed: Completed | None = None

    def take(self, event: GenerationEvent) -> None:
        match event:
            case Started():
                self.started = event
            case Delta():
                self._blocks.feed(event.events)
                self._tokens += event.tokens
            case Ended():
                self.completed = Completed(self.started, event, self._blocks.all, self._tokens)


async def collect(events: AsyncIterator[GenerationEvent]) -> Completed:
    collector = Collector()
    async for event in events:
        collector.take(event)
    return _whole(collector)


async def collect_all(events: AsyncIterator[Numbered], count: int) -> list[Completed]:
    """The same for several generations at once."""
    collectors = [Collector() for _ in range(count)]
    async for number, event in events:
        collectors[number].take(event)
    return [_whole(collector) for collector in collectors]


def _whole(collector: Collector) -> Completed:
    if collector.completed is None:
        raise RuntimeDied("The runtime ended without finishing the request.")
    return collector.completed
