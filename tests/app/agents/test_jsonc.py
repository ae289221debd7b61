"""Edits of JSON with comments; the oracle is what Python's own reader says without them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.agents import jsonc
from app.core.agents.agent import AgentError

COMMENTED = """\
// mine
{
    "a": 1, // one
    /* two
       lines */
    "env": {
        "X": "y // no comment", // z
    },
    "list": [1, 2,], // end
    // last words
}
// after
"""

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(), values, max_size=4)
layouts = st.sampled_from([None, 2, 4, "\t"])


def changed(whole: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    first, *rest = path
    inner = changed(whole.get(first, {}), tuple(rest), value) if rest else value
    return {**whole, first: inner}


@given(objects, layouts)
def test_plain_json_is_read_as_python_reads_it(value: dict[str, Any], layout: Any) -> None:
    assert jsonc.parse(json.dumps(value, indent=layout)) == value


@given(objects, layouts, st.text(), values, st.booleans(), st.booleans())
def test_only_what_was_asked_for_changes(
    value: dict[str, Any], layout: Any, name: str, new: Any, windows: bool, ends: bool
) -> None:
    text = json.dumps(value, indent=layout) + "\n" * ends
    text = text.replace("\n", "\r\n") if windows else text
    put = jsonc.put(text, (name,), new)
    assert json.loads(put) == changed(value, (name,), new)
    assert put.endswith("\n") == ends
    if "\r\n" in text:
        assert "\n" not in put.replace("\r\n", "")


@given(objects, layouts, st.lists(st.text(), min_size=2, max_size=3), values)
def test_what_is_on_the_way_is_made(
    value: dict[str, Any], layout: Any, path: list[str], new: Any
) -> None:
    value = {name: each for name, each in value.items() if name != path[0]}
    put = jsonc.put(json.dumps(value, indent=layout), path, new)
    assert json.loads(put) == changed(value, tuple(path), new)


def test_comments_commas_and_layout_stay() -> None:
    put = jsonc.put(COMMENTED, ("env", "NEW"), "1")
    put = jsonc.put(put, ("model",), {"k": True})
    assert put == COMMENTED.replace(
        '"X": "y // no comment", // z\n', '"X": "y // no comment", // z\n        "NEW": "1",\n'
    ).replace("// last words\n", '// last words\n    "model": {\n        "k": true\n    },\n')
    expected = {"a": 1, "env": {"X": "y // no comment", "NEW": "1"}, "list": [1, 2]}
    assert jsonc.parse(put) == {**expected, "model": {"k": True}}


def test_a_value_is_replaced_where_it_stands() -> None:
    put = jsonc.put(COMMENTED, ("a",), "new")
    assert put == COMMENTED.replace('"a": 1,', '"a": "new",')
    assert jsonc.put(COMMENTED, ("a",), 1) == COMMENTED


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", '{\n  "a": 1\n}\n'),
        ("{}", '{\n  "a": 1\n}'),
        ("{ /* why */ }\n", '{ /* why */\n  "a": 1\n}\n'),
        ('{"b": [1]}', '{"b": [1], "a": 1}'),
        ('\ufeff{"b": 2,}', '\ufeff{"b": 2, "a": 1,}'),
        ('{\n\t"b": 2 // two\n}', '{\n\t"b": 2, // two\n\t"a": 1\n}'),
        ('{"a": 0, "a": 2}', '{"a": 0, "a": 1}'),
    ],
)
def test_layouts(text: str, expected: str) -> None:
    assert jsonc.put(text, ("a",), 1) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "no JSON object"),
        ('{"a": 3}', "a is no JSON object"),
        ('{\n"a" 3}', "colon is missing in line 2"),
        ('{"a": {"x": 1}', "comma or } is missing"),
        ("{'a': 1}", "name in quotes"),
        ('{"a": {}} 3', "something follows"),
        ('{"a": 01x}', "value"),
        ("// only words", "value is missing"),
        ("[" * 100_000, "too deep"),
    ],
)
def test_what_cannot_be_edited_is_refused(text: str, said: str) -> None:
    with pytest.raises(AgentError, match=said):
        jsonc.put(text, ("a", "b"), 1)
