"""JSON schemas taken apart: places in them, and parts that stand on their own."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, unquote

_ROOT = "/$defs/root"
OPTIONS = ("$schema", "x-guidance")
"""Keywords of a whole schema that say how to read it."""
MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords with schemas under names."""
DATA = ("enum", "const", "default", "examples")
"""Keywords with values."""


def step(key: str) -> str:
    """A key as it stands in a JSON pointer (RFC 6901), with the slash before it."""
    return "/" + key.replace("~", "~0").replace("/", "~1")


def at(schema: Any, place: str) -> Any:
    """What a JSON pointer leads to; None if it leads nowhere."""
    for part in place.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, list):
            schema = schema[int(key)] if key.isdigit() and int(key) < len(schema) else None
        else:
            schema = schema.get(key) if isinstance(schema, dict) else None
    return schema


def target(schema: Any) -> str | None:
    """Where a schema's reference leads to within the whole, as a JSON pointer."""
    found = schema.get("$ref") if isinstance(schema, dict) else None
    return unquote(found[1:]) if isinstance(found, str) and (found + "/")[:2] == "#/" else None


def apart(schema: Any) -> dict[str, Any]:
    """A schema that holds another without asking for it; `reference` then says for which part."""
    has = schema if isinstance(schema, dict) else {}
    options = {key: has[key] for key in OPTIONS if key in has}
    return {**options, "$defs": {"root": _moved(schema)}}


def reference(place: str) -> str:
    """The `$ref` of a part of the schema that `apart` holds."""
    return f"#{_ROOT}{quote(place)}"


def without_root(text: str) -> str:
    """A message about a schema that `apart` holds, in terms of that schema."""
    return text.replace(_ROOT, "")


def without_null_keywords(schema: Any) -> Any:
    """The schema without keywords that are null, which no keyword but those with values can be:
    some clients write null for what is not there."""
    if isinstance(schema, list):
        return [without_null_keywords(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    said = {key: value for key, value in schema.items() if value is not None or key in DATA}
    for key, value in said.items():
        if key in MAPS and isinstance(value, dict):
            said[key] = {name: without_null_keywords(each) for name, each in value.items()}
        elif key not in DATA:
            said[key] = without_null_keywords(value)
    return said


def _moved(value: Any) -> Any:
    """A schema as it reads one level down, with references that still lead to the same place."""
    if isinstance(value, list):
        return [_moved(each) for each in value]
    if not isinstance(value, dict):
        return value
    moved = {key: _moved(each) for key, each in value.items() if key not in ("$id", *OPTIONS)}
    place = target(value)
    return moved if place is None else {**moved, "$ref": reference(place)}
