"""Edits of TOML; the oracle is Python's own reader, before and after."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.agents import toml_text
from app.core.agents.agent import AgentError

TABLE = ("model_providers", "headrace")
KEYS = {"model": "m", "model_provider": "headrace"}
OWN = {"name": "Headrace", "base_url": "http://127.0.0.1:1/v1"}
MINE = """\
# mine
model = "gpt" # the "big" one
notify = [
  "a", # [not a table]
]
text = \"\"\"
[model_providers.headrace]
model = 'x'
\"\"\"

# about the projects
[projects."/home/me"]
trust_level = "trusted"
model = "inner"

[model_providers.other]
name = "O"
"""


def put(text: str) -> str:
    return toml_text.put(text, KEYS, TABLE, OWN)


def expected(text: str) -> dict[str, Any]:
    old = tomllib.loads(text.removeprefix("\ufeff"))
    providers = {**old.get("model_providers", {}), "headrace": OWN}
    return {**old, **KEYS, "model_providers": providers}


def test_all_else_stays_as_it_is() -> None:
    after = put(MINE)
    assert after == (
        MINE.replace('model = "gpt" # the', 'model = "m" # the').replace(
            '"""\n\n# about', '"""\nmodel_provider = "headrace"\n\n# about'
        )
        + '\n[model_providers.headrace]\nname = "Headrace"\nbase_url = "http://127.0.0.1:1/v1"\n'
    )
    assert tomllib.loads(after) == expected(MINE)


def test_again_changes_nothing() -> None:
    assert put(put(MINE)) == put(MINE)


def test_an_older_table_is_replaced() -> None:
    older = (
        f'{MINE}\n[ model_providers . "headrace" ] # old\nbase_url = "x"\nkey = 1\n# next\n[z]\n'
    )
    after = put(older)
    assert tomllib.loads(after) == expected(older) and after.endswith("# next\n[z]\n")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "# a comment without an end",
        "x = 1",
        "\ufeffx = 1\n",
        MINE.replace("\n", "\r\n"),
        MINE.rstrip("\n"),
        "[a]\n[a.b]\nx = '''\n[q]\n'''",
        "\"model\" = 'it'\n",
        "model_providers.other.name = 'O'\n",
    ],
)
def test_layouts(text: str) -> None:
    after = put(text)
    assert tomllib.loads(after.removeprefix("\ufeff")) == expected(text)
    assert after.startswith("\ufeff") == text.startswith("\ufeff")
    if "\r\n" in text:
        assert "\n" not in after.replace("\r\n", "")


@pytest.mark.parametrize(
    "text",
    [
        "model_providers = {headrace = {name = 'x'}}",
        "[model_providers]\nheadrace = {name = 'x'}",
        "model_providers = 3",
        "[model_providers.headrace]\nname = 'x'\n[model_providers.headrace.headers]\na = 'b'",
        "[[model]]\nx = 1",
        "not toml",
    ],
)
def test_what_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(AgentError):
        put(text)


letters = st.characters(exclude_categories=["Cs"])


@given(st.text(letters) | st.integers(-(2**63), 2**63 - 1) | st.booleans())
def test_values_are_read_back(value: Any) -> None:
    assert tomllib.loads(f"x = {toml_text.written(value)}") == {"x": value}


lines = st.sampled_from(
    ["a = 1", "b = [\n 1,\n]", "# note", "", "c = '#' # c", "model = 'x'", "[t]", "[t.u]", "[v]"]
)


@given(st.lists(lines, max_size=7, unique=True), st.booleans(), st.sampled_from(["\n", "\r\n"]))
def test_any_order(pieces: list[str], ends: bool, newline: str) -> None:
    text = newline.join(piece.replace("\n", newline) for piece in pieces) + newline * ends
    try:
        before = expected(text)
    except tomllib.TOMLDecodeError:
        return
    after = put(text)
    assert tomllib.loads(after) == before
    for piece in pieces:
        if not piece.startswith("model"):
            assert piece.replace("\n", newline) in after
