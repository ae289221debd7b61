"""An answer as its blocks, stretches of reasoning or text and calls: whole, or while they grow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from engine.chat.parsers.events import (
    CallArguments,
    CallClosed,
    CallOpened,
    OutputEvent,
    Reasoning,
    Text,
)


@dataclass
class Block:
    kind: Literal["text", "reasoning", "call"]
    index: int
    """Counts the blocks of an answer from 0."""
    name: str = ""
    """Of the function that a call calls."""
    content: str = ""
    """Text, or a call's arguments."""
    complete: bool = True
    """False for a call that is cut off or whose arguments are no JSON object."""


@dataclass(frozen=True, slots=True)
class BlockOpened:
    block: Block


@dataclass(frozen=True, slots=True)
class BlockGrown:
    block: Block
    text: str


@dataclass(frozen=True, slots=True)
class BlockClosed:
    block: Block


BlockEvent = BlockOpened | BlockGrown | BlockClosed


class Blocks:
    """Feed a parser's events; get back how the answer's blocks open, grow and close."""

    def __init__(self) -> None:
        self.all: list[Block] = []
        self._open: Block | None = None

    def feed(self, events: Iterable[OutputEvent]) -> list[BlockEvent]:
        changes: list[BlockEvent] = []
        for event in events:
            match event:
                case Text():
                    self._grow("text", event.text, changes)
                case Reasoning():
                    self._grow("reasoning", event.text, changes)
                case CallOpened():
                    self._start("call", event.name, changes)
                case CallArguments():
                    self._grow("call", event.text, changes)
                case CallClosed():
                    if self._open is not None:
                        self._open.complete = event.complete
                    changes += self.finish()
        return changes

    def finish(self) -> list[BlockEvent]:
        """Close what is open."""
        block, self._open = self._open, None
        return [] if block is None else [BlockClosed(block)]

    def _start(
        self, kind: Literal["text", "reasoning", "call"], name: str, changes: list[BlockEvent]
    ) -> Block:
        changes += self.finish()
        self._open = Block(kind, len(self.all), name)
        self.all.append(self._open)
        changes.append(BlockOpened(self._open))
        return self._open

    def _grow(
        self, kind: Literal["text", "reasoning", "call"], text: str, changes: list[BlockEvent]
    ) -> None:
        block = self._open
        if block is None or block.kind != kind:
            block = self._start(kind, "", changes)
        block.content += text
        changes.append(BlockGrown(block, text))
