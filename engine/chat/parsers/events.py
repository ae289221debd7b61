"""What a model's output means, in the order it is written: every protocol maps from these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Piece:
    """Output as the detokenizer hands it on: a stretch of text, or one control token.

    Control tokens are tokens of their own in the vocabulary; text that merely spells one is text.
    """

    text: str
    control: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class CallOpened:
    """A tool call begins. `index` counts the calls of one answer from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next part of a call's arguments: all parts joined are the text of one JSON object."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallClosed:
    index: int
    complete: bool
    """False where the output ended inside the call, or its arguments are no JSON object."""


OutputEvent = Text | Reasoning | CallOpened | CallArguments | CallClosed


class OutputParser(Protocol):
    """Events do not depend on how the output is cut into pieces, but for how text is cut.

    No output makes a parser raise, and none is lost: what is no well-formed markup is text.
    """

    def feed(self, piece: Piece) -> list[OutputEvent]: ...

    def finish(self) -> list[OutputEvent]:
        """What was held back, once nothing follows."""
        ...
