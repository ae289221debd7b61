"""Every family's answers, however the output is cut, and whatever becomes of it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator

import pytest
import regex

from engine.chat.parsers.events import Piece
from engine.chat.parsers.families import FAMILIES, family_named, family_of, opens_thinking
from tests.chat.parsers.goldens import GOLDENS, TOOLS, Golden, answer

MUTATIONS = 2_000
FULL_MUTATIONS = 100_000
MARKUP = {"tool_call", "parameter", "think"}
"""Words of markup that some golden answers have in their text too."""


def cut(pieces: Iterable[Piece], parts: Callable[[str], Iterable[str]]) -> Iterator[Piece]:
    """Text in smaller pieces; control tokens are never cut."""
    for piece in pieces:
        if piece.control:
            yield piece
        else:
            yield from map(Piece, parts(piece.text))


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda golden: golden.family)
def test_an_answer_in_one_piece(golden: Golden) -> None:
    parsed = golden.parse(golden.pieces())
    assert (parsed.text, parsed.reasoning) == (golden.text, golden.reasoning)
    assert [name for name, _, _ in parsed.calls] == [name for name, _ in golden.calls]
    for (_, arguments, complete), (_, expected) in zip(parsed.calls, golden.calls, strict=True):
        assert complete == isinstance(expected, dict)
        assert (json.loads(arguments) if complete else arguments) == expected


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda golden: golden.family)
def test_an_answer_cut_anywhere_is_the_same(golden: Golden) -> None:
    whole = golden.parse(golden.pieces())
    assert golden.parse(cut(golden.pieces(), list)) == whole
    for at in range(len(golden.output)):
        assert golden.parse(cut(golden.pieces(), lambda text: (text[:at], text[at:]))) == whole  # noqa: B023


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda golden: golden.family)
def test_an_answer_that_ends_anywhere_loses_nothing(golden: Golden) -> None:
    """Words that the whole answer shows are shown as far as the output goes."""
    words = set(regex.findall(r"\w+", golden.parse(golden.pieces()).everything)) - MARKUP
    for at in range(len(golden.output)):
        output = golden.output[:at]
        parsed = golden.parse(cut(golden.pieces(output), list))
        assert parsed == golden.parse(golden.pieces(output))
        # The last word may be cut itself.
        for word in words & set(regex.findall(r"\w+(?=\W)", output)):
            assert word in parsed.everything, output


@pytest.mark.parametrize(
    ("family", "output"),
    [
        ("hermes", '<tool_call>{"name": "now", "arguments": {"a": NaN}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "now", "arguments": {"a": [1e999]}}</tool_call>'),
        ("hermes", '<tool_call>{"arguments": {"a": -Infinity}, "name": "now"}</tool_call>'),
        ("glm", "<tool_call>now<arg_key>a</arg_key><arg_value>[1e999]</arg_value></tool_call>"),
        ("glm", "<tool_call>now<arg_key>a</arg_key><arg_value>NaN</arg_value></tool_call>"),
    ],
)
def test_numbers_that_json_does_not_have(family: str, output: str) -> None:
    def refuse(name: str) -> None:
        raise ValueError(name)

    parsed = Golden(family, output).parse([Piece(output)])
    for _, arguments, complete in parsed.calls:
        if complete:
            json.loads(arguments, parse_constant=refuse)
    assert "now" in parsed.everything


@pytest.mark.parametrize("name", [family.name for family in FAMILIES])
@pytest.mark.parametrize(
    ("begin", "part"),
    [
        ("<tool_call>", "word "),
        ('<tool_call>{"name": "', "word "),
        ('<tool_call>{"x": "', "ab} "),
        ('<tool_call>{"name": "now", "arguments": {}, "x": "', "ab "),
        ("<function=now><parameter=a>", "ab </parameter> "),
        ("<｜tool▁call▁begin｜>", "word "),
        ("<|channel|>final", " "),
        ("x", " "),
        ("<think>", "\n"),
    ],
)
def test_work_grows_no_faster_than_output(name: str, begin: str, part: str) -> None:
    """Counted in characters that patterns look at, which does not depend on the machine."""
    looks = []
    for count in (2_000, 8_000):
        stream = LookCounter(name)
        stream.feed(begin)
        for _ in range(count):
            stream.feed(part)
        looks.append(stream.finish())
    assert looks[1] <= 8 * looks[0]


class LookCounter:
    """A parser whose stream counts how long the texts are that it searches."""

    def __init__(self, name: str) -> None:
        self._parser = family_named(name).parser(TOOLS, (), thinking=False)
        self._stream = self._parser._stream  # type: ignore[attr-defined]
        self._looks = 0
        first = self._stream._first
        self._stream._first = lambda pattern: self._counted(first(pattern))

    def _counted(self, result: object) -> object:
        self._looks += len(self._stream._buffer)
        return result

    def feed(self, text: str) -> None:
        self._parser.feed(Piece(text))

    def finish(self) -> int:
        self._parser.finish()
        return self._looks


def test_text_that_spells_a_control_token_is_text() -> None:
    for name, spelled in (
        ("harmony", "<|channel|>final<|message|>x"),
        ("deepseek_tokens", "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>"),
        ("glm", "<tool_call>now</tool_call>"),
    ):
        special = next(golden.special for golden in GOLDENS if golden.family == name)
        golden = Golden(name, spelled, special=special)
        parsed = golden.parse([Piece(spelled)])
        assert (parsed.text, parsed.calls) == (spelled, [])


def test_without_tools_a_call_is_text() -> None:
    for golden in GOLDENS:
        if not golden.calls:
            continue
        parser = family_named(golden.family).parser((), golden.special, thinking=golden.thinking)
        events = [event for piece in golden.pieces() for event in parser.feed(piece)]
        parsed = answer([*events, *parser.finish()])
        assert not parsed.calls
        # For harmony every message has a channel, so what was meant as a call is just a message.
        assert golden.family == "harmony" or golden.calls[0][0] in parsed.everything


def test_unknown_control_tokens_have_no_text() -> None:
    golden = Golden("hermes", "", special=("<|other|>",))
    assert golden.parse([Piece("a"), Piece("<|other|>", control=True), Piece("b")]).text == "ab"


def test_thinking_that_the_prompt_opened() -> None:
    assert opens_thinking("<|im_start|>assistant\n<think>\n")
    assert not opens_thinking("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not opens_thinking("<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("template", "family"),
    [
        ('<tool_call>\n{{"name": <function-name>}}', "hermes"),
        ("<tool_call>\n<function=x>\n<parameter=y>", "qwen_xml"),
        ("<tool_call>x<arg_key>", "glm"),
        ("<｜tool▁call▁begin｜>", "deepseek_tokens"),
        ("{%- set dsml_token = '｜DSML｜' -%}", "deepseek_dsml"),
        ("<|start|>assistant<|channel|>final<|message|>", "harmony"),
        ("[INST] {{ message }}", "plain"),
    ],
)
def test_a_family_is_told_by_its_template(template: str, family: str) -> None:
    assert family_of(template).name == family


@pytest.mark.parametrize(
    "count",
    [MUTATIONS, pytest.param(FULL_MUTATIONS, marks=[pytest.mark.full, pytest.mark.timeout(1200)])],
)
def test_broken_output_neither_raises_nor_gets_lost(count: int) -> None:
    """Random damage: the answer does not depend on cuts, and every word put in is in it."""
    chance = random.Random(count)
    for _ in range(count):
        golden = chance.choice(GOLDENS)
        output = _damaged(golden.output, chance)
        if chance.random() < 0.5:  # as a vocabulary without these control tokens
            golden = Golden(golden.family, golden.output, thinking=golden.thinking)
        pieces = golden.pieces(output)
        whole = golden.parse(pieces)
        assert golden.parse(cut(pieces, lambda text: _parts(text, chance))) == whole, output
        for word in regex.findall(r"zq\d+q", output):
            assert word in whole.everything, output


_INSERTED = ("<", ">", "{", "}", '"', "\\", "\n", " ", "é", "</tool_call>", "<tool_call>")
_INSERTED += ("<think>", "</think>", "<|message|>", "<｜tool▁sep｜>", "</parameter>", "null")


def _damaged(output: str, chance: random.Random) -> str:
    for _ in range(chance.randint(1, 4)):
        begin = chance.randrange(len(output) + 1)
        end = min(len(output), begin + chance.randrange(12))
        match chance.randrange(5):
            case 0:
                output = output[:begin] + output[end:]
            case 1:
                output = output[:end] + output[begin:end] + output[end:]
            case 2:
                output = output[:begin] + chance.choice(_INSERTED) + output[begin:]
            case 3:
                output = output[:begin]
            case 4:
                output = output[:begin] + f"zq{chance.randrange(1000)}q" + output[begin:]
    return output


def _parts(text: str, chance: random.Random) -> Iterator[str]:
    at = 0
    while at < len(text):
        size = chance.choice((1, 1, 2, 3, 7, 20))
        yield text[at : at + size]
        at += size
