"""Schemas as grammars are made of them: what is narrowed, and what is left as it is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from engine.chat.parsers.families import PLAIN
from engine.chat.parsers.schemas import prepared
from engine.chat.structured import AnswerFormat, structured_answer
from engine.schemas import without_null_keywords
from tests.chat.grammars import ByteModel, takes

MODEL = ByteModel(())
INT64 = {"minimum": -(2**63), "maximum": 2**63 - 1}


def is_allowed(text: str, schema: Any) -> bool:
    wanted = AnswerFormat("json_schema", schema)
    document = structured_answer(PLAIN, wanted, MODEL.special, "none")
    return takes(MODEL.compile(document), text.encode(), MODEL.end)


@pytest.mark.parametrize("bounds", [{}, {"minimum": 0}, {"maximum": 2**64 - 1}, INT64])
@pytest.mark.parametrize("kinds", ["integer", ["integer", "null"]])
def test_integers_have_an_end(kinds: Any, bounds: dict[str, int]) -> None:
    """A small model that has begun with digits may never stop."""
    schema = {"type": "object", "properties": {"n": {"type": kinds, **bounds}}, "required": ["n"]}
    for value in (-1, 0, 7, 2**53, 10**18):
        text = json.dumps({"n": value})
        assert is_allowed(text, schema) == Draft202012Validator(schema).is_valid({"n": value})
    assert not is_allowed(f'{{"n": {"1" * 40}}}', schema)
    assert is_allowed('{"n": null}', schema) == (kinds != "integer")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": 1, "maximum": 9},
        {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 10},
        {"type": ["integer", "number"]},
        {"type": "integer", "enum": [7, 2**70]},
        {"type": "integer", "multipleOf": 7},
        {"type": "integer", "minimum": 2**70},
        {"type": "integer", "minimum": True},
        {"allOf": [{"type": "integer"}, {"minimum": 2**70}]},
        {"properties": {"n": {"$id": "https://example.org/n", "type": "integer"}}, "required": []},
    ],
)
def test_what_says_more_of_an_integer_stays(schema: dict[str, Any]) -> None:
    made = prepared(schema, "x")
    assert "$defs" not in made and "$ref" not in json.dumps(made)


def test_equal_integers_are_one_definition() -> None:
    """A compiler takes its time over each that stands on its own."""
    whole = {"type": "integer", "description": "some"}
    properties = {str(number): whole for number in range(50)} | {"n": {**whole, "minimum": 0}}
    made = prepared({"type": "object", "properties": properties, "$defs": {"own": {}}}, "x")
    assert len(made["$defs"]) == 3


@pytest.mark.parametrize("schema", [True, {}])
def test_a_schema_that_allows_everything(schema: Any) -> None:
    assert is_allowed('{"a": [1, null]}', schema)


def test_a_schema_in_a_place_of_another_kind() -> None:
    """Booleans are schemas, too."""
    schema = {"type": "object", "properties": {"a": True}, "additionalProperties": False}
    assert is_allowed('{"a": 7}', schema) and not is_allowed('{"b": 7}', schema)


def test_keywords_that_are_null_are_absent_and_values_stay() -> None:
    schema = {
        "type": "object",
        "required": None,
        "properties": {"a": {"const": None, "title": None}, "b": {"enum": [None], "items": None}},
        "$defs": {"c": {"default": None, "anyOf": [{"type": None}, {"examples": [None]}]}},
    }
    assert without_null_keywords(schema) == {
        "type": "object",
        "properties": {"a": {"const": None}, "b": {"enum": [None]}},
        "$defs": {"c": {"default": None, "anyOf": [{}, {"examples": [None]}]}},
    }
