"""JSON schemas at random, of the keywords that grammars enforce."""

from __future__ import annotations

import random
from typing import Any

NAMES = ("a", "b c", "id", "naïve", 'q"', "$x", "a/b")
WORDS = ("x", "", "two words", 'a "quote"', "é", "</tag>", "1")


def schema(draw: random.Random, depth: int = 3) -> dict[str, Any]:
    """Every schema allows something."""
    kinds = [_text, _number, _choice, _scalar]
    if depth:
        kinds += [_object, _object, _array, _either]
    made = draw.choice(kinds)(draw, depth)
    if draw.random() < 0.2:
        made = {"title": "T", "description": "d", **made}
    return made


def whole(draw: random.Random) -> dict[str, Any]:
    """An object, now and then with definitions that it refers to, also to itself."""
    made = _object(draw, 3)
    if draw.random() < 0.4:
        key = draw.choice(("$defs", "definitions"))
        leaf = schema(draw, 1)
        again = {"$ref": f"#/{key}/node"}
        made["properties"]["node"] = again
        made[key] = {
            "leaf": leaf,
            "node": {
                "type": "object",
                "properties": {
                    "leaf": {"$ref": f"#/{key}/leaf"},
                    "next": {"anyOf": [again, {"type": "null"}]},
                },
                "required": ["leaf", "next"],
                "additionalProperties": False,
            },
        }
    return made


def _text(draw: random.Random, _depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "string"}
    extra = draw.choice(("", "", "length", "pattern", "format"))
    if extra == "length":
        made |= {"minLength": draw.randrange(3), "maxLength": draw.randrange(3, 9)}
    if extra == "pattern":
        made["pattern"] = draw.choice(("^[a-z]+$", r"^\d{2}-\d{2}$", "x", "^(yes|no)$", r"^\w*/$"))
    if extra == "format":
        made["format"] = draw.choice(("date", "uuid", "ipv4", "time", "email"))
    return made


def _number(draw: random.Random, _depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": draw.choice(("integer", "number"))}
    if draw.random() < 0.5:
        least = draw.randrange(-100, 100)
        made |= {"minimum": least, "maximum": least + draw.randrange(200)}
    elif draw.random() < 0.3:
        made["exclusiveMinimum"] = draw.randrange(-9, 9)
    return made


def _choice(draw: random.Random, _depth: int) -> dict[str, Any]:
    values = [*WORDS, 0, -1, 2.5, True, False, None, [1, "x"], {"k": None}]
    if draw.random() < 0.3:
        return {"const": draw.choice(values)}
    return {"enum": draw.sample(values, draw.randrange(1, 5))}


def _scalar(draw: random.Random, _depth: int) -> dict[str, Any]:
    kinds = ["boolean", "null", "integer", "string"]
    return {"type": draw.choice((*kinds, draw.sample(kinds, 2)))}


def _object(draw: random.Random, depth: int) -> dict[str, Any]:
    names = draw.sample(NAMES, draw.randrange(5))
    made: dict[str, Any] = {
        "type": "object",
        "properties": {name: schema(draw, depth - 1) for name in names},
        "required": [name for name in names if draw.random() < 0.6],
    }
    if draw.random() < 0.5:
        made["additionalProperties"] = draw.choice((False, {"type": "integer"}))
    return made


def _array(draw: random.Random, depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "array", "items": schema(draw, depth - 1)}
    if draw.random() < 0.4:
        made["minItems"] = draw.randrange(3)
    if draw.random() < 0.4:
        made["maxItems"] = made.get("minItems", 0) + draw.randrange(3)
    if draw.random() < 0.2:
        made = {"type": "array", "prefixItems": [schema(draw, depth - 1)], "items": False}
    return made


def _either(draw: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [schema(draw, depth - 1) for _ in range(draw.randrange(1, 4))]}
