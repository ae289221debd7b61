"""What parsers and grammars need to know of a tool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Tool:
    name: str
    parameters: dict[str, Any]
    """JSON schema of the arguments."""
