"""JSON schemas as grammars are made of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engine.chat.parsers.integers import Integers
from engine.errors import InvalidRequest
from engine.schemas import DATA, MAPS

MAX_DEPTH = 96
"""Deepest nesting of a schema's own text; compilers of grammars give up soon beyond."""
# One space, or one line break and the spaces of an indentation: a small model, once it has begun
# with white space, may never stop.
_WHITE_SPACE = r"( |\n[ \t]{0,16})?"
# Those that grammars enforce. An unknown format says nothing (JSON Schema 2020-12, 7.2.3).
_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
)
_COMBINED = ("$ref", "allOf", "anyOf", "oneOf", "patternProperties", "additionalProperties")


def prepared(schema: Any, param: str, *, lenient: bool = False) -> Any:
    """The schema as a grammar should have it; everything it allows the schema itself allows.

    White space is bounded, and so are integers; `nullable` of OpenAPI is null; objects that list
    their properties have no others, where nothing says that they may. `lenient`: keywords that
    grammars do not know are passed over instead of refused. Raises InvalidRequest naming `param`
    for one nested too deep.
    """
    if _deeper(schema, MAX_DEPTH):
        raise InvalidRequest(
            f"{param}: the JSON schema is nested deeper than {MAX_DEPTH} levels.", param=param
        )
    parts = list(_schemas(schema))
    closing = not any(_joins(each) for each in parts)
    # Below another `$id` a reference leads elsewhere.
    integers = Integers() if closing and not any("$id" in each for each in parts[1:]) else None
    changed = _changed(schema, integers, closing=closing)
    if not isinstance(changed, dict):
        return changed
    if integers is not None:
        changed = integers.beside(changed)
    options = {"whitespace_pattern": _WHITE_SPACE}
    loose = {"lenient": True, "coerce_one_of": True} if lenient else {}
    return {**changed, "x-guidance": {**options, **loose}}


def _changed(schema: Any, integers: Integers | None, *, closing: bool) -> Any:
    if not isinstance(schema, dict):
        return schema
    changed = {key: _inner(key, value, integers, closing=closing) for key, value in schema.items()}
    if isinstance(changed.get("format"), str) and changed["format"] not in _FORMATS:
        del changed["format"]
    if closing and _is_listed(changed):
        changed["additionalProperties"] = False
    if changed.pop("nullable", None) is True:
        changed = _with_null(changed)
    return changed if integers is None else integers.bounded(changed)


def _inner(key: str, value: Any, integers: Integers | None, *, closing: bool) -> Any:
    if key in DATA:
        return value
    if key in MAPS and isinstance(value, dict):
        return {name: _changed(each, integers, closing=closing) for name, each in value.items()}
    if isinstance(value, list):
        return [_changed(each, integers, closing=closing) for each in value]
    return _changed(value, integers, closing=closing)


def _is_listed(schema: dict[str, Any]) -> bool:
    """Whether `properties` says all that is wanted of an object."""
    properties, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(properties, dict) or any(key in schema for key in _COMBINED):
        return False
    if not isinstance(required, list):
        return False
    return all(isinstance(name, str) and name in properties for name in required)


def _with_null(schema: dict[str, Any]) -> Any:
    kind = schema.get("type")
    if isinstance(schema.get("enum"), list):
        schema["enum"] = [*schema["enum"], *([] if None in schema["enum"] else [None])]
    if isinstance(kind, str | list):
        kinds = [kind] if isinstance(kind, str) else kind
        return {**schema, "type": kinds if "null" in kinds else [*kinds, "null"]}
    return schema if "enum" in schema else {"anyOf": [schema, {"type": "null"}]}


def _joins(schema: dict[str, Any]) -> bool:
    """Whether what one part says of an object another part adds to."""
    parts = schema.get("allOf")
    return isinstance(parts, list) and len(parts) > 1


def _schemas(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _schemas(each)


def _deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_deeper(each, levels - 1) for each in inner)
