"""What parsers and grammars need to know of a tool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

INPUT = "input"
"""The one parameter that a model is told of where a tool takes plain text."""


@dataclass(frozen=True)
class TextInput:
    """What the text that a tool takes must be."""

    syntax: Literal["lark", "regex"]
    definition: str
    """A Lark grammar with a rule `start`, or a regular expression of the whole text."""
    param: str
    """The request's field that an error names."""


@dataclass(frozen=True)
class Tool:
    name: str
    parameters: dict[str, Any]
    """JSON schema of the arguments."""
    strict: bool = False
    """A schema that grammars cannot enforce in full is refused; otherwise what they do not know of
    it is passed over where a call is enforced."""
    text: TextInput | None = None
    """Of a tool whose one parameter is INPUT."""
