"""Our grammars for JSON schemas beside xgrammar's: both take and refuse the same values.

Where they differ, `jsonschema` is the judge. Its verdict may go against xgrammar, which is narrower
(it anchors patterns, writes enumerated objects without white space, ends fractions, takes a schema
without `type` for one of what its keywords are about) and wider (it passes over keywords that it
does not know or cannot join). It may go against us only for a reason that `ours_is_narrower` knows.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import random
import re
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, FormatChecker

from engine.chat.parsers.families import PLAIN
from engine.chat.structured import AnswerFormat, structured_answer
from engine.errors import InvalidRequest
from tests.chat import random_schemas
from tests.chat.grammars import ByteModel, takes
from tests.chat.oracles.instances import near, orders
from tests.fetched import kept, python_packages, python_source

PACKAGES = ("xgrammar==0.2.9", "apache-tvm-ffi==0.1.15.post2")
SUITE = "jsonschema==4.26.0"
"""Its source has the JSON Schema Test Suite."""
SCHEMAS, FULL_SCHEMAS = 40, 300
FULL = [pytest.mark.full, pytest.mark.timeout(3000)]
FORMATS = FormatChecker({"date", "email", "ipv4", "ipv6", "uuid"})
NO_JUDGE = ("time", "date-time", "duration", "hostname", "uri")
"""Formats that grammars enforce and `jsonschema` does not, or by other rules."""
MODEL = ByteModel(())
Case = tuple[str, Any, list[Any]]
"""Name, schema, and values to try beside those that are made."""


@functools.cache
def xgrammar() -> Any:
    """The package. Skips the test where it cannot be had."""
    sys.path.insert(0, str(python_packages(*PACKAGES)))
    try:
        importlib.import_module("xgrammar.testing")
        return importlib.import_module("xgrammar")
    finally:
        sys.path.pop(0)


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Without what C++ writes to stderr about what it does not support."""
    kept_as = os.dup(2)
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept_as, 2)
            os.close(kept_as)


class Ours:
    """Raises InvalidRequest for a schema that is not supported."""

    def __init__(self, schema: Any) -> None:
        wanted = AnswerFormat("json_schema", schema)
        self._document = structured_answer(PLAIN, wanted, MODEL.special, "none")
        MODEL.compile(self._document)

    def takes(self, value: Any) -> bool:
        return takes(MODEL.compile(self._document), text_of(value).encode(), MODEL.end)

    def sample(self, draw: random.Random) -> Any:
        tokens = MODEL.walk(MODEL.compile(self._document), draw)
        return json.loads("".join(piece.text for piece in MODEL.pieces(tokens)))


class Theirs:
    """Raises RuntimeError for a schema that is not supported."""

    def __init__(self, schema: Any) -> None:
        make = xgrammar().Grammar.from_json_schema
        self._grammar = make(json.dumps(schema), any_whitespace=True, strict_mode=False)

    def takes(self, value: Any) -> bool:
        accepts = xgrammar().testing._is_grammar_accept_string
        return bool(accepts(self._grammar, text_of(value)))


def text_of(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def is_finite(value: Any) -> bool:
    """A number with many digits may be none that Python can hold."""
    try:
        return bool(json.dumps(value, allow_nan=False))
    except ValueError:
        return False


def is_valid(value: Any, schema: Any) -> bool:
    return bool(Draft202012Validator(schema, format_checker=FORMATS).is_valid(value))


def ours_is_narrower(schema: Any, value: Any, ours: Ours) -> bool:
    """Whether a valid value is refused for a reason: objects that list their properties have no
    others; integers are bounded; members come in the order of the schema; whole numbers are
    written without a fraction where integers are wanted."""
    if not is_valid(value, narrowed(schema)):
        return True
    return any(ours.takes(each) for each in orders(_whole(value)))


OTHERS = {"$ref", "allOf", "anyOf", "oneOf", "patternProperties", "additionalProperties"}
"""Keywords that say what else an object may have."""
BOUNDS = {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}
WORDS = {"title", "description", "default", "examples", "format"}


def narrowed(schema: Any) -> Any:
    """The schema by two rules of ours: an object that lists all properties it asks for has no
    others, and an integer is within 10^18, unless its own bounds lie wholly outside. Neither holds
    in a schema where an `allOf` joins several."""
    return schema if _joins(schema) else _narrowed(schema)


def _joins(schema: Any) -> bool:
    if isinstance(schema, list):
        return any(map(_joins, schema))
    if not isinstance(schema, dict):
        return False
    parts = schema.get("allOf")
    return (isinstance(parts, list) and len(parts) > 1) or _joins(list(schema.values()))


def _narrowed(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    for key, inner in schema.items():
        if key in ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"):
            made[key] = {name: _narrowed(each) for name, each in inner.items()}
        elif key in ("allOf", "anyOf", "oneOf", "prefixItems"):
            made[key] = [_narrowed(each) for each in inner]
        elif key in ("items", "additionalProperties"):
            made[key] = _narrowed(inner)
    listed, asked = schema.get("properties"), schema.get("required", [])
    if listed is not None and not OTHERS & schema.keys() and set(asked) <= listed.keys():
        made["additionalProperties"] = False
    kinds = schema.get("type")
    listed = kinds if isinstance(kinds, list) else [kinds]
    if (
        "integer" in listed
        and "number" not in listed
        and schema.keys() <= {"type"} | BOUNDS | WORDS
    ):
        within = {"minimum": -(10**18), "maximum": 10**18}
        low = max(schema.get("minimum", 0), schema.get("exclusiveMinimum", 0))
        high = min(schema.get("maximum", 0), schema.get("exclusiveMaximum", 0))
        if low <= 10**18 and high >= -(10**18):
            made = {"allOf": [made, within]}
    return made


def test_our_rules_make_schemas_narrower() -> None:
    listing = {"type": "object", "properties": {"a": {"type": ["integer", "null"]}}}
    assert is_valid({"a": None}, narrowed(listing)) and is_valid({"a": 10**18}, narrowed(listing))
    for refused in ({"a": 10**18 + 1}, {"b": 1}, {"a": 1, "b": 1}):
        assert is_valid(refused, listing) and not is_valid(refused, narrowed(listing))
    asking = {**listing, "required": ["b"]}
    assert is_valid({"b": 1}, narrowed(asking))
    for schema, value in (
        ({**listing, "additionalProperties": True}, {"b": 1}),
        ({"allOf": [listing, {"properties": {"b": {}}}]}, {"b": 1}),
        ({"type": "integer", "minimum": 10**19}, 10**20),
        ({"type": "integer", "multipleOf": 2}, 10**20),
        ({"type": "number"}, 10**20),
    ):
        assert is_valid(value, narrowed(schema)), schema


def _whole(value: Any) -> Any:
    if isinstance(value, list):
        return [_whole(each) for each in value]
    if isinstance(value, dict):
        return {name: _whole(each) for name, each in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def judged(name: str, schema: Any, values: list[Any], verdicts: Counter[str]) -> None:
    text = text_of(schema)
    if any(f'"format": "{each}"' in text for each in NO_JUDGE):
        return
    if re.search(r'"\$(ref|dynamicRef|schema)": "(?!#|https://json-schema\.org)', text):
        return  # it needs what lies elsewhere
    try:
        with silent():
            ours, theirs = Ours(schema), Theirs(schema)
    except (InvalidRequest, RuntimeError):
        verdicts["not supported by both"] += 1
        return
    verdicts["schemas"] += 1
    draw = random.Random(name)
    samples = [ours.sample(draw) for _ in range(2)]
    tried = [*samples, *(near(each, draw) for each in samples for _ in range(5)), *values]
    for value in filter(is_finite, tried):
        valid = is_valid(value, schema)
        mine = ours.takes(value)
        with silent():
            agree = mine == theirs.takes(value)
        assert valid or not mine, (name, schema, value)
        assert valid == mine or ours_is_narrower(schema, value, ours), (name, schema, value)
        verdicts[f"{'both' if agree else 'we alone'} {'take' if mine else 'refuse'}"] += 1


def _extract(folder: Path) -> None:
    archive = python_source(SUITE, folder)
    with tarfile.open(archive) as packed:
        for member in packed.getmembers():
            path = Path(member.name)
            if path.suffix == ".json" and path.parts[1:-1] == ("json", "tests", "draft2020-12"):
                found = packed.extractfile(member)
                assert found is not None
                (folder / path.name).write_bytes(found.read())
    archive.unlink()


def random_cases(count: int) -> list[Case]:
    draws = [random.Random(seed) for seed in range(count)]
    make = (random_schemas.schema, random_schemas.whole)
    return [(f"random {at}", make[at % 2](draw), []) for at, draw in enumerate(draws)]


def suite_cases() -> list[Case]:
    folder = kept("json-schema-suite", _extract)
    return [
        (
            f"{file.stem}: {group['description']}",
            group["schema"],
            [t["data"] for t in group["tests"]],
        )
        for file in sorted(folder.glob("*.json"))
        for group in json.loads(file.read_bytes())
    ]


@pytest.mark.parametrize("count", [SCHEMAS, pytest.param(FULL_SCHEMAS, marks=FULL)])
def test_random_schemas(count: int, record_property: Any) -> None:
    xgrammar()
    verdicts: Counter[str] = Counter()
    for name, schema, values in random_cases(count):
        judged(name, schema, values, verdicts)
    record_property("verdicts", dict(verdicts))
    assert verdicts["not supported by both"] == 0
    # What xgrammar alone sees otherwise is a small part.
    assert verdicts["both take"] > count and verdicts["both refuse"] > 3 * count
    alone = verdicts["we alone take"] + verdicts["we alone refuse"]
    assert 10 * alone < verdicts["both take"] + verdicts["both refuse"]


@pytest.mark.full
@pytest.mark.timeout(3000)
def test_the_public_suite(record_property: Any) -> None:
    xgrammar()
    verdicts: Counter[str] = Counter()
    for name, schema, values in suite_cases():
        judged(name, schema, values, verdicts)
    record_property("verdicts", dict(verdicts))
    print(dict(verdicts))
    assert verdicts["schemas"] > 150
