"""Grammars that no answer is held to: compiled once, however often they are sent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.errors import InvalidRequest
from engine.runtime import grammar
from engine.runtime.grammar import GrammarCompiler, TokenGrammar
from engine.server.tool_use import MAX_TOOLS
from tests.runtime.test_grammar import END, VOCABULARY, document


class Counting(GrammarCompiler):
    compiled = 0

    def _compile(self, text: str) -> TokenGrammar:
        self.compiled += 1
        return super()._compile(text)


@pytest.fixture
def compiler() -> Iterator[Counting]:
    made = Counting(VOCABULARY, END + 1)
    yield made
    made.close()


def tools(count: int) -> list[str]:
    return [document(schema={"const": f"tool {number}"}) for number in range(count)]


def test_as_many_tools_as_a_request_may_have_compile_once(compiler: Counting) -> None:
    for _ in range(2):
        for half in (tools(MAX_TOOLS), tools(MAX_TOOLS)[::-1]):
            assert compiler.compile_all("", half).result() is None
            assert compiler.compiled == MAX_TOOLS


def test_those_unused_longest_are_forgotten(
    compiler: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar, "CHECKED", 3)
    one, two, three, four = tools(4)
    for sent, compiled in (
        ([one, two, three], 3),
        ([one], 3),
        ([four], 4),  # in the place of the second
        ([one, three, four], 4),
        ([two], 5),
    ):
        compiler.compile_all("", sent).result()
        assert compiler.compiled == compiled


def test_what_fails_is_not_known(compiler: Counting) -> None:
    wrong = document('start: "')
    for _ in range(2):
        with pytest.raises(InvalidRequest):
            compiler.compile_all("", [wrong]).result()
    assert compiler.compiled == 2
