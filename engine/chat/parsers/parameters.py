"""What a tool's schema says of each of its parameters."""

from __future__ import annotations

from itertools import chain, product
from typing import Any

from engine.schemas import at, step, target

_DEPTH = 8
"""Longest chain of references and combinations that is followed."""
_COMBINATIONS = ("anyOf", "oneOf", "allOf")


def parameter_types(schema: Any, name: str) -> frozenset[str]:
    """JSON types that a tool's schema allows for a parameter; empty where it says nothing."""
    lists = {each for variant in variants(schema) for each in variant}
    types = (types_at(schema, f"{place}/properties{step(name)}") for place in lists)
    return frozenset().union(*types)


def variants(schema: Any) -> list[tuple[str, ...]]:
    """Ways to meet a schema, each as the places of the parts that list its properties."""
    return _variants(schema, "", _DEPTH)


def types_at(schema: Any, place: str) -> frozenset[str]:
    """JSON types that the part at this place allows; empty where it says nothing."""
    return frozenset(_types(at(schema, place), schema, _DEPTH))


def resolved(schema: Any, place: str) -> Any:
    """The part at this place, or what it refers to."""
    found = at(schema, place)
    for _ in range(_DEPTH):
        elsewhere = target(found)
        if elsewhere is None:
            break
        found = at(schema, elsewhere)
    return found


def _variants(whole: Any, place: str, depth: int) -> list[tuple[str, ...]]:
    schema = at(whole, place)
    if not isinstance(schema, dict) or depth == 0:
        return []
    if isinstance(schema.get("properties"), dict) and schema["properties"]:
        return [(place,)]
    elsewhere = target(schema)
    if elsewhere is not None:
        return _variants(whole, elsewhere, depth - 1)

    def parts(key: str) -> list[list[tuple[str, ...]]]:
        found = schema.get(key)
        count = len(found) if isinstance(found, list) else 0
        every = (_variants(whole, f"{place}/{key}/{each}", depth - 1) for each in range(count))
        return [each for each in every if each]

    together = (tuple(chain(*each)) for each in product(*parts("allOf")))
    either = chain(*parts("anyOf"), *parts("oneOf"))
    return [each for each in (*together, *either) if each]


def _types(declared: Any, whole: Any, depth: int) -> set[str]:
    if not isinstance(declared, dict) or depth == 0:
        return set()
    elsewhere = target(declared)
    if elsewhere is not None:
        return _types(at(whole, elsewhere), whole, depth - 1)
    null = {"null"} if declared.get("nullable") is True else set()
    named = declared.get("type")
    if isinstance(named, str):
        return {named} | null
    if isinstance(named, list):
        return {each for each in named if isinstance(each, str)} | null
    types: set[str] = set()
    for key in _COMBINATIONS:
        if isinstance(declared.get(key), list):
            for each in declared[key]:
                types |= _types(each, whole, depth - 1)
    values = declared.get("enum", [declared["const"]] if "const" in declared else [])
    return types | ({type_of(value) for value in values} if isinstance(values, list) else set())


def type_of(value: Any) -> str:
    """The JSON type of a value."""
    for kind, name in (
        (bool, "boolean"),
        (int, "integer"),
        (float, "number"),
        (str, "string"),
        (list, "array"),
        (dict, "object"),
    ):
        if isinstance(value, kind):
            return name
    return "null"
