"""Grammars of calls whose parameters stand one by one between tags."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from engine.chat.parsers.grammar import ANYTHING, Grammar, containing, literal, slashed
from engine.chat.parsers.parameters import parameter_types, resolved, types_at, variants
from engine.chat.parsers.tools import INPUT, Tool
from engine.schemas import apart, at, reference, step

_NUMBERS = frozenset({"integer", "number"})
_NESTED = frozenset({"array", "object"})


def tagged_parameters(
    grammar: Grammar,
    tool: Tool,
    before: Callable[[str, bool], str],
    after: str,
    closing: str = "",
) -> str:
    """Parameters in the order of the schema, those that are not required left out or not.

    `before(name, text)` opens a parameter, whose value is plain text or else JSON; `after` is the
    markup that closes it. `closing`: a regular expression of what else would close it.
    """
    whole = tool.parameters
    if tool.text is not None and tool.text.syntax == "lark":
        text = grammar.inner("lark_grammar", tool.text.definition)
        return f"{before(INPUT, True)} {text} {grammar.markup(after)}"

    def parameter(place: str, name: str) -> str:
        place += f"/properties{step(name)}"
        values = _values(grammar, whole, place, name, after, closing)
        return " | ".join(f"{before(name, text)} {value}" for text, value in values)

    def listed(place: str) -> str:
        schema = at(whole, place)
        required = schema.get("required")
        mandatory = required if isinstance(required, list) else []
        return " ".join(
            f"({parameter(place, name)}){'' if name in mandatory else '?'}"
            for name in schema["properties"]
        )

    ways = [" ".join(map(listed, places)) for places in variants(whole)]
    return f"({' | '.join(ways)})" if ways else ""


def _values(
    grammar: Grammar, whole: Any, place: str, name: str, after: str, closing: str
) -> Iterator[tuple[bool, str]]:
    """Ways to write a value and the markup that closes it; each says whether it is plain text."""
    here, anywhere = types_at(whole, place), parameter_types(whole, name)
    if "string" in here:
        wanted = _text(resolved(whole, place), anywhere)
        if closing:
            wanted = f"({wanted}) & ~{containing(closing)}"
        yield True, grammar.text_before(after, wanted)
    others = here - {"string", "null"}
    if others or here <= {"null"}:
        schema = _alone(whole, place, sorted(others) if "string" in here else [])
        yield False, f"{grammar.json(schema)} {grammar.markup(after)}"


def _alone(whole: Any, place: str, types: list[str]) -> Any:
    """The schema at a place, with what its references need; where there are `types`, of these."""
    among = [{"$ref": reference(place)}, *([{"type": types}] if types else [])]
    return {**apart(whole), "allOf": among}


def _text(schema: Any, types: frozenset[str]) -> str:
    """An expression for text that is read as text, or as what else these types allow."""
    if not isinstance(schema, dict):
        return ANYTHING
    if isinstance(schema.get("enum"), list) or "const" in schema:
        choices = schema["enum"] if "enum" in schema else [schema["const"]]
        return " | ".join(
            literal(each if isinstance(each, str) else json.dumps(each)) for each in choices
        )
    wanted = [ANYTHING]  # what is negated may be no text at all
    if types <= {"string", "null"}:
        wanted += _limits(schema)
    if types & _NUMBERS:
        wanted.append(r"~/\s*[-+.0-9](?s:.*)/")
    if types & _NESTED:
        wanted.append(r"~/\s*[\[{(](?s:.*)/")
    return " & ".join(wanted)


def _limits(schema: dict[str, Any]) -> list[str]:
    least, most = schema.get("minLength"), schema.get("maxLength")
    wanted = []
    if isinstance(least, int) or isinstance(most, int):
        wanted.append(f"/(?s:.{{{least or 0},{'' if most is None else most}}})/")
    if isinstance(schema.get("pattern"), str):
        wanted.append(_search(schema["pattern"]))
    return wanted


def _search(expression: str) -> str:
    """A pattern of JSON Schema, which may match anywhere, as one of the whole text."""
    begin = "" if expression.startswith("^") else "(?s:.*)"
    anchored = expression.endswith("$") and not expression.endswith(r"\$")
    end = "" if anchored else "(?s:.*)"
    core = expression.removeprefix("^")
    core = core[:-1] if anchored else core
    return f"/{begin}({slashed(core)}){end}/"
