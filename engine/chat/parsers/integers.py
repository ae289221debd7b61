"""Integers in JSON schemas, bounded: a small model that has begun with digits may never stop."""

from __future__ import annotations

import math
from typing import Any
from urllib.parse import quote

LARGEST = 10**18
"""It fits in 64 bits; most clients read numbers as floats, which are exact to 2^53 only."""
_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
_SILENT = ("title", "description", "default", "examples", "format")


class Integers:
    """The bounded integers of one schema. Those that are alike are one definition, since each
    that stands on its own takes a compiler milliseconds."""

    def __init__(self) -> None:
        self._made: dict[str, dict[str, Any]] = {}

    def bounded(self, schema: dict[str, Any]) -> dict[str, Any]:
        """The schema, or a reference to a narrower one that has a smallest and a largest value."""
        kept = {key: value for key, value in schema.items() if key not in _SILENT}
        kinds = kept.get("type")
        if not _whole(kinds) or kept.keys() - {"type", *_LOWER, *_UPPER}:
            return schema
        bounds = _bounds(kept)
        if bounds is None:
            return schema
        made = {"type": kinds, **bounds}
        new = f"integer {len(self._made)}"
        name = next((name for name, each in self._made.items() if each == made), new)
        self._made[name] = made
        return {"$ref": f"#{quote(f'/$defs/{name}')}"}

    def beside(self, schema: dict[str, Any]) -> dict[str, Any]:
        """The whole schema with the definitions that its parts refer to."""
        defined = schema.get("$defs", {})
        if not self._made or not isinstance(defined, dict):
            return schema
        return {**schema, "$defs": {**defined, **self._made}}


def _whole(kinds: Any) -> bool:
    """Whether all numbers of these types are whole."""
    listed = [kinds] if isinstance(kinds, str) else kinds
    return isinstance(listed, list) and "integer" in listed and "number" not in listed


def _bounds(schema: dict[str, Any]) -> dict[str, Any] | None:
    """What bounds an integer on both sides; None where that is done already, or cannot be."""
    bounds = {key: schema[key] for key in (*_LOWER, *_UPPER) if key in schema}
    if any(
        isinstance(value, bool) or not isinstance(value, int | float) for value in bounds.values()
    ):
        return None  # an older draft's, or nonsense: the compiler reads it or refuses it
    low = max((bounds[key] for key in _LOWER if key in bounds), default=-math.inf)
    high = min((bounds[key] for key in _UPPER if key in bounds), default=math.inf)
    if low > LARGEST or high < -LARGEST or (low >= -LARGEST and high <= LARGEST):
        return None
    if low < -LARGEST:
        bounds = {"minimum": -LARGEST} | {key: bounds[key] for key in _UPPER if key in bounds}
    if high > LARGEST:
        bounds = {"maximum": LARGEST} | {key: bounds[key] for key in _LOWER if key in bounds}
    return bounds
