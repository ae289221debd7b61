"""Values for schemas: those that a grammar allows, and others that are nearly like them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

LEAVES = (None, True, 0, -7, 1.5, "", "abc", "2024-02-30", [], {}, [1], {"a": 1})


def near(value: Any, draw: random.Random) -> Any:
    """The value with one change somewhere in it."""
    kind = draw.random()
    if isinstance(value, dict) and value and kind < 0.75:
        return _near_object(value, draw)
    if isinstance(value, list) and kind < 0.7:
        return _near_array(value, draw)
    if isinstance(value, int | float) and not isinstance(value, bool) and kind < 0.6:
        return draw.choice([value + 1, -value, value * 1000, value + 0.5, 0])
    if isinstance(value, str) and kind < 0.6:
        return draw.choice([value + "x", value[:-1], value[:9] * 20, "", "é"])
    return draw.choice(LEAVES)


def _near_object(value: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    key, kind = draw.choice(list(value)), draw.randrange(5)
    if kind == 0:
        return {name: each for name, each in value.items() if name != key}
    if kind == 1:
        return {**value, "extra": draw.choice([1, "x", None])}
    return {**value, key: near(value[key], draw)}


def _near_array(value: list[Any], draw: random.Random) -> list[Any]:
    kind = draw.randrange(3)
    if value and kind == 0:
        return value[:-1]
    if value and kind == 1:
        at = draw.randrange(len(value))
        return [*value[:at], near(value[at], draw), *value[at + 1 :]]
    return [*value, draw.choice([1, "x", None, {}])]


def orders(value: Any, limit: int = 200) -> Iterator[Any]:
    """The value with the members of its objects in other orders."""
    return itertools.islice(_orders(value), limit)


def _orders(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        yield from map(list, itertools.product(*(list(orders(each, 6)) for each in value)))
    elif isinstance(value, dict):
        for names in itertools.permutations(value):
            inner = itertools.product(*(list(orders(value[name], 6)) for name in names))
            yield from (dict(zip(names, each, strict=True)) for each in inner)
    else:
        yield value
