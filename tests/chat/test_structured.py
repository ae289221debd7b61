"""Grammars of every family: what they take, and what a parser makes of what they allow."""

from __future__ import annotations

import json
import random
from itertools import product
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from engine.chat.parsers.events import Piece
from engine.chat.parsers.families import FAMILIES, Family, family_named
from engine.chat.parsers.tools import TextInput, Tool
from engine.chat.structured import (
    AnswerFormat,
    Thinking,
    compiled_beside,
    enforced_calls,
    structured_answer,
)
from engine.errors import InvalidRequest
from tests.chat import random_schemas
from tests.chat.grammars import ByteModel, allows, takes
from tests.chat.parsers.goldens import GLM, GOLDENS, HARMONY, TOOLS, V31, Golden, answer

WALKS = 4
FULL_WALKS = 30
SPECIAL: dict[str, tuple[str, ...]] = {
    "harmony": HARMONY,
    "deepseek_dsml": ("｜DSML｜", "</think>"),
    "deepseek_tokens": V31,
    "glm": GLM,
}
"""Control tokens of the families that have some; with none, all of their markup is text."""
PARAMETERS: dict[str, dict[str, Any]] = {
    "nothing": {"type": "object", "properties": {}},
    "words": {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "code": {"type": "string", "pattern": "^[A-Z]{2}[/<-][0-9]+$"},
            "short": {"type": "string", "minLength": 1, "maxLength": 5},
            "kind": {"enum": ["a", "b</", "c d"]},
            "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["text", "code", "short", "kind"],
    },
    "values": {
        "type": "object",
        "properties": {
            "count": {"type": "integer", "minimum": 1, "maximum": 99},
            "share": {"type": "number", "minimum": 0, "maximum": 1},
            "on": {"type": "boolean"},
            "size": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
            "list": {"type": "array", "items": {"enum": ["x", 1, None]}, "minItems": 1},
            "any": {"type": ["integer", "array", "boolean", "null"], "items": {"type": "null"}},
            "fixed": {"const": 7},
        },
        "required": ["count", "list", "fixed", "size"],
    },
    "nested": {
        "type": "object",
        "properties": {
            "place": {
                "type": "object",
                "properties": {
                    "lat": {"type": "number"},
                    "note": {"type": ["string", "null"], "maxLength": 5},
                },
                "required": ["lat"],
            },
            "tree": {"$ref": "#/$defs/tree"},
            "again": {"$ref": "#/properties/place"},
            # Short keys: where closing markup is text, one within a JSON value closes it.
            "free": {
                "type": "object",
                "patternProperties": {"^[a-z]{1,3}$": {"type": "integer"}},
                "additionalProperties": False,
            },
        },
        "required": ["tree", "again"],
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 3},
                    "branches": {
                        "type": "array",
                        "items": {"$ref": "#/$defs/tree"},
                        "maxItems": 2,
                    },
                },
                "required": ["name", "branches"],
            }
        },
    },
    "referred": {
        "$ref": "#/definitions/arguments",
        "definitions": {
            "arguments": {
                "type": "object",
                "properties": {"id": {"type": "integer"}, "name": {"type": "string"}},
                "required": ["id", "name"],
            }
        },
    },
    "either": {
        "anyOf": [
            {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
            {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
        ]
    },
    "both": {
        "allOf": [
            {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
            {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
        ]
    },
}


def special_of(family: Family) -> list[tuple[str, ...]]:
    return [SPECIAL[family.name], ()] if family.name in SPECIAL else [()]


VOCABULARIES = [(family, special) for family in FAMILIES for special in special_of(family)]
NAMES = [f"{family.name}{'' if special else '-as-text'}" for family, special in VOCABULARIES]
every_vocabulary = pytest.mark.parametrize(("family", "special"), VOCABULARIES, ids=NAMES)


def parsed(family: Family, model: ByteModel, tokens: list[int], tools: tuple[Tool, ...]) -> Any:
    name = "hermes" if family.name == "plain" else family.name  # as the server has them parsed
    parser = family_named(name).parser(tools, model.special, thinking=False)
    events = [event for piece in model.pieces(tokens) for event in parser.feed(piece)]
    return answer([*events, *parser.finish()])


def is_regular(golden: Golden) -> bool:
    """Its calls are as the family's template writes them, and in the order of the schema."""
    irregular: tuple[str, ...] = (
        '{"arguments"',
        '"{\\"',
        "two\nlines",
        "{}}\n<tool_call>",
        "I must look\n<tool",
    )
    irregular += ("<parameter=ranges>", "many", "\n<function=read_file>\n<parameter=mode>")
    complete = all(isinstance(arguments, dict) for _, arguments in golden.calls)
    return bool(golden.calls) and complete and not any(e in golden.output for e in irregular)


REGULAR = [golden for golden in GOLDENS if is_regular(golden)]


def test_every_family_that_calls_has_a_regular_golden() -> None:
    assert {golden.family for golden in REGULAR} | {"plain", "qwen_xml"} == {
        family.name for family in FAMILIES
    }


@pytest.mark.parametrize("golden", REGULAR, ids=lambda golden: golden.family)
def test_calls_as_models_write_them_are_allowed(golden: Golden) -> None:
    model = ByteModel([*golden.special])
    thinking: Thinking = "opened" if golden.thinking else "possible"
    grammar = enforced_calls(
        family_named(golden.family), TOOLS, model.special, thinking, several=True
    )
    output = golden.output.removesuffix("<|call|>")  # which ends the output, too
    before, _, after = output.rpartition(golden.text) if golden.text else ("", "", output)
    if golden.family == "harmony" and golden.text:  # a message of its own
        before = before.removesuffix("<|start|>assistant<|channel|>commentary<|message|>")
        after = after.removeprefix("<|end|>")
    tokens = model.tokens(golden.pieces(before + after))
    assert takes(model.compile(grammar), tokens, model.end)


@every_vocabulary
@pytest.mark.parametrize(
    "walks", [WALKS, pytest.param(FULL_WALKS, marks=[pytest.mark.full, pytest.mark.timeout(1200)])]
)
def test_whatever_is_allowed_is_read_as_valid_calls(
    family: Family, special: tuple[str, ...], walks: int
) -> None:
    model = ByteModel(special)
    tools = tuple(Tool(name, schema, strict=True) for name, schema in PARAMETERS.items())
    draw = random.Random(f"{family.name} {special}")
    for tool, several in product(tools, (False, True)):
        offered = tools if several else (tool,)
        document = enforced_calls(family, offered, model.special, "none", several=several)
        for _ in range(walks):
            tokens = model.walk(model.compile(document), draw)
            found = parsed(family, model, tokens, offered)
            output = model.pieces(tokens)
            assert found.calls and not found.text, output
            assert family.name == "harmony" or not found.reasoning
            assert several or len(found.calls) == 1
            for name, arguments, complete in found.calls:
                assert complete, (name, arguments, output)
                Draft202012Validator(PARAMETERS[name]).validate(json.loads(arguments))


TEXTS = (
    TextInput(
        "lark", 'start: line~1..9 "*** \\"End\\""\nline: /[a-z\\\\"<\\/]{1,4}/ "\\n"', "format"
    ),
    TextInput("lark", r'start: (/[^<>\n]{1,5}/ "\n" /[a"]{1,5}/ "\t;")~1..2', "format"),
    TextInput("regex", r'[0-9]{3}|"/\/\\<\n?', "format"),
)
TAKES_TEXT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


@every_vocabulary
@pytest.mark.parametrize("text", TEXTS, ids=lambda text: f"{text.syntax} {len(text.definition)}")
def test_text_that_a_tool_takes_is_what_its_grammar_allows(
    family: Family, special: tuple[str, ...], text: TextInput
) -> None:
    model = ByteModel(special)
    wanted = {"type": "string", "pattern": f"^(?:{text.definition})$"}
    held = TAKES_TEXT | ({"properties": {"input": wanted}} if text.syntax == "regex" else {})
    tools = (Tool("edit", held, text=text), Tool("now", PARAMETERS["nothing"]))
    (own,) = compiled_beside(tools, model.special, enforced=True)
    document = enforced_calls(family, tools[:1], model.special, "none", several=True)
    draw = random.Random(f"{family.name} {special}")
    for _ in range(WALKS):
        tokens = model.walk(model.compile(document), draw)
        found = parsed(family, model, tokens, tools)
        assert found.calls, model.pieces(tokens)
        for name, arguments, complete in found.calls:
            assert complete and name == "edit", model.pieces(tokens)
            (taken,) = json.loads(arguments).values()
            assert takes(model.compile(own), taken.encode(), model.end), taken


@pytest.mark.parametrize("text", ['*** Begin\n\t"a\\b"\n\n', "x\n", "x\ny\n"])
def test_a_text_with_line_breaks_can_be_written(text: str) -> None:
    model = ByteModel(())
    tool = Tool(
        "edit",
        TAKES_TEXT,
        text=TextInput("lark", "start: /.+/ (LF /.*/)* LF\n%import common.LF", "format"),
    )
    document = enforced_calls(family_named("hermes"), (tool,), {}, "none", several=False)
    arguments = json.dumps({"input": text})
    call = f'<tool_call>\n{{"name": "edit", "arguments": {arguments}}}\n</tool_call>'
    assert takes(model.compile(document), call.encode(), model.end)


def test_what_must_compile_beside_is_told_in_the_words_of_the_request() -> None:
    model = ByteModel(())
    strict = Tool("f", {"type": "object", "properties": {"a": {"$ref": "#/zz"}}}, strict=True)
    broken = Tool("edit", TAKES_TEXT, text=TextInput("lark", "start: zz", "tools[1].format"))
    of_schema, of_text = compiled_beside((strict, broken), {}, enforced=False)
    with pytest.raises(InvalidRequest, match=r"schema of the tool 'f' .* at /zz: ") as one:
        model.compile(of_schema)
    with pytest.raises(InvalidRequest, match=r"grammar of the tool 'edit' .*zz") as other:
        model.compile(of_text)
    assert (one.value.param, other.value.param) == ("tools", "tools[1].format")
    assert compiled_beside((strict,), {}, enforced=True) == ()
    unquotable = TextInput("lark", "start: ~A\nA: /a/", "tools[0].format")
    with pytest.raises(InvalidRequest, match=r"tool 'edit' cannot be enforced: ~") as third:
        enforced_calls(
            family_named("hermes"),
            (Tool("edit", TAKES_TEXT, text=unquotable),),
            {},
            "none",
            several=False,
        )
    assert third.value.param == "tools[0].format"


def test_a_pattern_with_a_slash_is_taken_as_it_is() -> None:
    schema = {
        "type": "object",
        "properties": {"text": {"type": "string", "pattern": r"^a\/b/$"}},
        "required": ["text"],
    }
    model = ByteModel(())
    for family in FAMILIES:
        document = enforced_calls(family, (Tool("say", schema),), {}, "none", several=False)
        tokens = model.walk(model.compile(document), random.Random(1))
        (call,) = parsed(family, model, tokens, (Tool("say", schema),)).calls
        assert json.loads(call[1]) == {"text": "a/b/"}


@every_vocabulary
@pytest.mark.parametrize("thinking", ["opened", "possible", "none"])
def test_every_grammar_compiles(
    family: Family, special: tuple[str, ...], thinking: Thinking
) -> None:
    model = ByteModel(special)
    tools = tuple(Tool(name, schema) for name, schema in PARAMETERS.items())
    formats = [
        AnswerFormat("json_schema", {"type": "object"}),
        AnswerFormat("regex", r"\d{4}/\d\d"),
        AnswerFormat("lark", 'start: "a"+'),
    ]
    for several in (False, True):
        model.compile(enforced_calls(family, tools, model.special, thinking, several=several))
    for wanted, offered in product(formats, ((), tools)):
        model.compile(structured_answer(family, wanted, model.special, thinking, offered))


def text_of(wanted: AnswerFormat, tools: tuple[Tool, ...] = ()) -> Any:
    model = ByteModel(())
    document = structured_answer(family_named("hermes"), wanted, {}, "none", tools)
    return model, model.compile(document)


def is_allowed(output: str, wanted: AnswerFormat, tools: tuple[Tool, ...] = ()) -> bool:
    model, grammar = text_of(wanted, tools)
    return takes(grammar, output.encode(), model.end)


def of_schema(schema: Any) -> AnswerFormat:
    return AnswerFormat("json_schema", schema)


@pytest.mark.parametrize("name", PARAMETERS)
def test_whatever_a_schema_allows_is_valid(name: str) -> None:
    draw = random.Random(name)
    for _ in range(WALKS):
        model, grammar = text_of(of_schema(PARAMETERS[name]))
        (piece,) = model.pieces(model.walk(grammar, draw))
        Draft202012Validator(PARAMETERS[name]).validate(json.loads(piece.text))


@pytest.mark.parametrize("schemas", [20, pytest.param(300, marks=pytest.mark.full)])
def test_whatever_a_random_schema_allows_is_valid(schemas: int) -> None:
    draw = random.Random(7)
    for _ in range(schemas):
        schema = random_schemas.whole(draw)
        model, grammar = text_of(of_schema(schema))
        (piece,) = model.pieces(model.walk(grammar, draw))
        Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(
            json.loads(piece.text)
        )


def test_white_space_is_bounded() -> None:
    wanted = of_schema(PARAMETERS["either"])
    for output in (
        '{"id":1}',
        '{ "id": 1 }',
        '{\n  "id": 1\n}',
        '{\n\t"id" : 1}',
    ):
        assert is_allowed(output, wanted)
    for output in ('{  "id": 1}', '{\n\n"id": 1}', ' {"id": 1}', '{"id": 1} ', '{"id": 1}\n'):
        assert not is_allowed(output, wanted)


def test_objects_have_the_properties_that_are_listed() -> None:
    inner = {"type": "object", "properties": {"b": {"type": "null"}}}
    closed = of_schema({"type": "object", "properties": {"a": inner}})
    assert is_allowed('{"a": {"b": null}}', closed)
    assert not is_allowed('{"a": {"c": null}}', closed)
    assert not is_allowed('{"c": null}', closed)
    open_to_more: tuple[dict[str, Any], ...] = (
        {"additionalProperties": True},
        {"patternProperties": {"^c": {}}},
    )
    for more in open_to_more:
        said = of_schema({"type": "object", "properties": {"a": inner}, **more})
        assert is_allowed('{"c": {"d": 1}}', said)
    assert is_allowed('{"c": {"d": 1}}', of_schema({"type": "object"}))
    parts = [{"$ref": "#/$defs/base"}, {"properties": {"c": {"type": "null"}}, "required": ["c"]}]
    joined = of_schema({"allOf": parts, "$defs": {"base": inner}})
    assert is_allowed('{"c": null, "b": null}', joined) or is_allowed(
        '{"b": null, "c": null}', joined
    )


def test_nullable_is_null() -> None:
    for schema in (
        {"type": "integer", "nullable": True},
        {"enum": [1, 2], "nullable": True},
        {"anyOf": [{"type": "integer"}], "nullable": True},
    ):
        assert is_allowed("null", of_schema(schema)) and is_allowed("1", of_schema(schema))
        assert not is_allowed('"1"', of_schema(schema))
    assert not is_allowed("null", of_schema({"type": "integer", "nullable": False}))


def test_a_format_that_nobody_knows_says_nothing() -> None:
    assert is_allowed('"x"', of_schema({"type": "string", "format": "colour"}))
    assert not is_allowed('"x"', of_schema({"type": "string", "format": "date"}))


def test_regular_expressions_and_grammars() -> None:
    for pattern, good, bad in (
        ("a/b", "a/b", "a"),
        (r"a\/b", "a/b", r"a\/b"),
        ("(yes|no)\n?", "no\n", "maybe"),
        (r"\\/", "\\/", "/"),
    ):
        assert is_allowed(good, AnswerFormat("regex", pattern))
        assert not is_allowed(bad, AnswerFormat("regex", pattern))
    wanted = AnswerFormat("lark", 'start: item ("," item)*\nitem: /[a-z]+/')
    assert is_allowed("a,bc", wanted) and not is_allowed("a,", wanted)


def test_a_format_beside_tools_leaves_both_open() -> None:
    tools = (Tool("now", {"type": "object"}),)
    wanted = AnswerFormat("regex", "yes|no")
    assert is_allowed("yes", wanted, tools)
    assert is_allowed('<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>', wanted, tools)
    assert not is_allowed("maybe", wanted, tools)


@pytest.mark.parametrize("parameters", [{}, {"type": "object"}, PARAMETERS["nothing"]])
def test_a_tool_without_parameters_takes_none(parameters: dict[str, Any]) -> None:
    model = ByteModel(())
    tools = (Tool("now", parameters),)
    document = enforced_calls(family_named("hermes"), tools, {}, "none", several=False)
    grammar = model.compile(document)
    begin = b'<tool_call>{"name": "now", "arguments": {'
    assert all(allows(grammar, token) and not grammar.accept(token) for token in begin)
    assert allows(grammar, ord("}")) and not allows(grammar, ord('"'))
    over = [grammar.accept(token) for token in b"}}</tool_call>"]
    assert over[-1] and not any(over[:-1])


def test_an_end_is_allowed_only_where_the_grammar_ends() -> None:
    model, grammar = text_of(AnswerFormat("regex", "ab?"))
    assert not allows(grammar, model.end)
    assert not grammar.accept(ord("a")) and allows(grammar, model.end)
    assert grammar.accept(ord("b"))


def test_strict_tools_are_enforced_in_full_or_refused() -> None:
    schema = {
        "type": "object",
        "properties": {"ids": {"type": "array", "items": {"type": "null"}, "uniqueItems": True}},
    }
    model = ByteModel(())
    for family in FAMILIES:
        strict, loose = (
            enforced_calls(family, (Tool("f", schema, strict),), {}, "none", several=False)
            for strict in (True, False)
        )
        model.compile(loose)
        with pytest.raises(InvalidRequest, match=r"tool 'f' .* at /properties/ids: .*uniqueItems"):
            model.compile(strict)


def test_the_place_of_a_fault_is_told() -> None:
    for schema, place, why in (
        ({"properties": {"a": {"items": {"type": "strin"}}}}, "/properties/a/items", "strin"),
        ({"properties": {"a/b~": {"pattern": "(["}}}, "/properties/a~1b~0", "regex"),
        ({"anyOf": [{"type": "null"}, {"not": {}}]}, "/anyOf/1", "not"),
        ({"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": 5}}}, "/$defs/x", ""),
        ({"properties": {"a": {"$ref": "#"}, "b": {"if": {}}}}, "/properties/b", "if"),
        ({"$ref": "#/$defs/none"}, "/$defs/none", "does not exist"),
        ({"properties": {"a": 1}}, "/properties/a", "object"),
        ({"allOf": [{"type": "null"}, {"type": "object"}]}, "its top", "nsatisfiable"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            text_of(AnswerFormat("json_schema", schema, "text.format"))
        assert f"at {place}: " in caught.value.message and why in caught.value.message
        assert caught.value.param == "text.format"


def test_other_faults_are_told() -> None:
    for wanted in (AnswerFormat("regex", "(a"), AnswerFormat("lark", "start: nothing")):
        with pytest.raises(InvalidRequest, match="cannot be compiled") as caught:
            text_of(wanted)
        assert caught.value.param == "response_format"


def test_a_schema_nested_too_deep_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(100):
        schema = {"items": schema}
    with pytest.raises(InvalidRequest, match="nested deeper"):
        text_of(of_schema(schema))


def test_a_control_token_within_closing_markup_closes_a_text() -> None:
    """DSML's tags hold a control token: what comes before it is text like any other."""
    model = ByteModel(("｜DSML｜",))
    tools = (Tool("say", {"properties": {"text": {"type": "string"}}, "required": ["text"]}),)
    document = enforced_calls(
        family_named("deepseek_dsml"), tools, model.special, "none", several=False
    )
    mark = Piece("｜DSML｜", control=True)
    output = [
        *(Piece("<"), mark, Piece("tool_calls>\n<"), mark, Piece('invoke name="say">\n<')),
        *(mark, Piece('parameter name="text" string="true">a < b, </ c </ '), Piece("</")),
        *(mark, Piece("parameter>\n</"), mark, Piece("invoke>\n</"), mark, Piece("tool_calls>")),
    ]
    tokens = model.tokens(output)
    assert takes(model.compile(document), tokens, model.end)
    found = parsed(family_named("deepseek_dsml"), model, tokens, tools)
    assert found.calls == [("say", '{"text": "a < b, </ c </ "}', True)]
