"""What parsers and grammars need to know of a tool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Tool:
    name: str
    parameters: dict[str, Any]
    """JSON schema of the arguments."""
    strict: bool = False
    """A schema that grammars cannot enforce in full is refused where a call is enforced; otherwise
    what they do not know of it is passed over."""
