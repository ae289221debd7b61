"""Thinking that is closed when its budget is used up, whatever the model would go on with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.chat.detokenizer import Detokenizer
from engine.chat.model_files import locate
from engine.chat.parsers.answer import END_OF_THINKING, THINK
from engine.chat.parsers.events import Reasoning, Text
from engine.chat.parsers.families import PLAIN, family_named
from engine.chat.structured import AnswerFormat, structured_answer
from engine.chat.text_model import load_text_model
from engine.errors import InvalidRequest
from engine.messages import (
    Finished,
    RequestFailed,
    Sampling,
    Submit,
    ThinkingBudget,
    UseVocabulary,
)
from engine.options import EngineOptions
from engine.runtime.engine import Engine
from engine.runtime.thinking import PATIENCE, ThinkingLimit
from tests.runtime.conftest import VOCAB
from tests.runtime.driving import Driver, driver, prompt
from tests.runtime.test_grammar import document

LETTERS = "abcdefghijklmnopqrstuvwxyz ,.!?"
OTHERS = (b"</", b"think", b">", b"<think>", b"</think>", b"\xc3", b"\xa9", b"<call", b"</t", b"")
SPELLINGS = [*(letter.encode() for letter in LETTERS), *OTHERS]
SPELLINGS += [b"w%d" % each for each in range(len(SPELLINGS), VOCAB)]
TEXT = UseVocabulary(tokens=SPELLINGS, special=[], ends=[])
CUT, REST, ANGLE, OPEN, CLOSE, LEAD, TAIL, CALL, PART, NOTHING = (
    len(LETTERS) + each for each in range(len(OTHERS))
)
HEADER = r"<call(?:a{1,9}!|b.*?!)"
"""Of calls that these models write."""
OPENING = r"\s*+" + THINK
CONTROL: dict[str, Any] = {"marks": [CLOSE, OPEN], "end": r"\ud800"}
"""Where the tags are control tokens."""
OPENS = r"\s*+\ud801"
A, B, SPACE, BANG = (LETTERS.index(each) for each in "ab !")
PIECES = [CUT, REST, ANGLE]
"""The closing tag in a vocabulary that has no token of its own for it."""


def budget(tokens: int, **fields: Any) -> ThinkingBudget:
    values: dict[str, Any] = {"closing": [CLOSE], "end": END_OF_THINKING, "call": HEADER, **fields}
    return ThinkingBudget(tokens=tokens, **values)


def output(limit: ThinkingLimit, wanted: list[int]) -> list[int]:
    """What comes of a model that would say this, one token after another."""
    said = []
    for token in wanted:
        said.append(token if limit.forced is None else limit.forced)
        limit.accept(said[-1])
    return said


@pytest.mark.parametrize(
    ("given", "wanted", "said"),
    [
        (budget(3), [A] * 6, [A, A, A, CLOSE, A, A]),
        (budget(0), [A] * 3, [CLOSE, A, A]),
        (budget(2, closing=PIECES), [A] * 7, [A, A, *PIECES, A, A]),
        # Closed by the model itself, even with the last token of the budget and in pieces.
        (budget(3), [A, A, CLOSE, A, A], [A, A, CLOSE, A, A]),
        (budget(3), [*PIECES, A, A], [*PIECES, A, A]),
        (budget(4), [A, PART, *[A] * 3], [A, PART, A, A, CLOSE]),
        # A call ends it as well.
        (budget(9), [A, CALL, A, BANG, *[A] * 9], [A, CALL, A, BANG, *[A] * 9]),
        (budget(2), [A, CALL, A, BANG, A, A], [A, CALL, A, BANG, A, A]),
        # Its mark alone does not: not before the budget is used up, and not where it is.
        (budget(4), [CALL, SPACE, *[A] * 9], [CALL, SPACE, A, A, CLOSE, *[A] * 6]),
        (budget(2), [A, CALL, SPACE, *[A] * 9], [A, CALL, SPACE, CLOSE, *[A] * 8]),
        (budget(4), [CALL, SPACE, CALL, A, A, BANG, A], [CALL, SPACE, CALL, A, A, BANG, A]),
        (budget(3), [CALL, B, *[A] * 199], [CALL, B, *[A] * (1 + PATIENCE), CLOSE, *[A] * 69]),
        (budget(99), [CALL, B, *[A] * 80, BANG, *[A] * 30], [CALL, B, *[A] * 80, BANG, *[A] * 30]),
        (
            budget(150),
            [CALL, B, *[A] * 99, *PIECES, *[A] * 99],
            [CALL, B, *[A] * 99, *PIECES, *[A] * 99],
        ),
        # Where the tags are control tokens, their spelling is text.
        (budget(4, **CONTROL), [*PIECES, A, A, A], [*PIECES, A, CLOSE, A]),
        (budget(3, **CONTROL), [A, CLOSE, *[A] * 5], [A, CLOSE, *[A] * 5]),
        (budget(1, **CONTROL), [A, OPEN, A], [A, CLOSE, A]),
        (budget(1, **CONTROL, opening=OPENS), [OPEN, A, A, A], [OPEN, A, CLOSE, A]),
        (budget(1, **CONTROL, opening=OPENS), [ANGLE, OPEN, A, A], [ANGLE, OPEN, A, A]),
        # Whether it thinks at all is seen at the begin.
        (budget(1, opening=OPENING), [OPEN, A, A, A], [OPEN, A, CLOSE, A]),
        (budget(1, opening=OPENING), [SPACE, SPACE, OPEN, A, A], [SPACE, SPACE, OPEN, A, CLOSE]),
        (budget(0, opening=OPENING), [OPEN, A, A], [OPEN, CLOSE, A]),
        (budget(0, opening=OPENING), [A, OPEN, A, A], [A, OPEN, A, A]),
        (budget(0, opening=OPENING), [NOTHING, OPEN, A], [NOTHING, OPEN, CLOSE]),
        # Only the first thoughts of an answer are counted.
        (budget(1), [CLOSE, OPEN, A, A, A], [CLOSE, OPEN, A, A, A]),
        # A character is not cut, but what is none is.
        (budget(2), [A, LEAD, TAIL, A], [A, LEAD, TAIL, CLOSE]),
        (budget(1), [LEAD] * 6, [*[LEAD] * 5, CLOSE]),
    ],
)
def test_the_tag_comes_when_the_budget_is_used_up(
    given: ThinkingBudget, wanted: list[int], said: list[int]
) -> None:
    controls = UseVocabulary(tokens=SPELLINGS, special=[OPEN, CLOSE, LEAD], ends=[])
    limit = ThinkingLimit(given, controls if given.marks else TEXT, VOCAB)
    assert output(limit, wanted) == said


def test_the_mask_has_one_token() -> None:
    for token in (0, 31, 32, VOCAB - 1):
        limit = ThinkingLimit(budget(0, closing=[token]), TEXT, VOCAB)
        bits = np.unpackbits(limit.mask().view(np.uint8), bitorder="little")
        assert len(limit.mask()) == VOCAB // 32 and bits.nonzero()[0].tolist() == [token]


def request(number: int, thinking: ThinkingBudget | None, **fields: Any) -> Submit:
    """Of a model that would never close its thinking."""
    return Submit(
        request=number,
        tokens=prompt(10 + number, seed=number),
        max_tokens=30,
        sampling=Sampling(seed=number, temperature=number % 2, bias={CLOSE: -1000.0}),
        thinking=thinking,
        **fields,
    )


def started(model: Path, **changes: Any) -> Driver:
    run = driver(model, prefill_chunk_tokens=16, **changes)
    spellings = [
        b"." if each in (CALL, LEAD, TAIL) else word for each, word in enumerate(SPELLINGS)
    ]
    run.engine.use_vocabulary(UseVocabulary(tokens=spellings, special=[OPEN, CLOSE], ends=[VOCAB]))
    return run


def test_up_to_the_budget_the_output_is_what_it_would_be(model: Path) -> None:
    """Beside requests without a budget, which it does not touch."""
    limits = {1: 5, 2: 0, 3: None, 4: 9, 5: 29, 6: 30}
    free = started(model).run(request(each, None) for each in limits)
    budgets = {number: None if n is None else budget(n) for number, n in limits.items()}
    run = started(model).run(request(*each) for each in budgets.items())
    for number, limit in limits.items():
        unbound = free.tokens(number)
        if limit is None or limit == 30:
            assert run.tokens(number) == unbound
        else:
            assert run.tokens(number)[: limit + 1] == [*unbound[:limit], CLOSE]
        assert len(run.tokens(number)) == 30
        assert run.tokens(number) == started(model).run([request(number, budgets[number])]).tokens(
            number
        )


def test_a_preempted_answer_goes_on_where_it_was(model: Path) -> None:
    wanted = [request(each, budget(12, closing=PIECES)) for each in (1, 2, 3)]
    run = started(model, kv_tokens=96).run(wanted)
    assert run.engine.scheduler.preemptions > 0
    for submit in wanted:
        assert run.tokens(submit.request) == started(model).run([submit]).tokens(submit.request)
        assert run.tokens(submit.request)[12:15] == PIECES


@pytest.mark.parametrize("opened", [True, False])
def test_a_grammar_goes_on_behind_the_tag(model: Path, opened: bool) -> None:
    begin = "" if opened else f"<[{OPEN}]> "
    wanted = document(f"start: {begin}TEXT <[{CLOSE}]> /[a-z]{{3}},!/\nTEXT: /(?s:.*)/")
    given = budget(6, **CONTROL, opening="" if opened else OPENS)
    run = started(model).run(request(each, given, grammar=wanted) for each in (1, 2))
    for number in (1, 2):
        tokens, end = run.tokens(number), run.end(number)
        assert isinstance(end, Finished) and end.reason == "stop"
        place = tokens.index(CLOSE)
        assert place == 6 + (not opened)
        answer = b"".join(SPELLINGS[token] for token in tokens[place + 1 :])
        assert re.fullmatch(rb"[a-z]{3},!", answer)


@pytest.mark.parametrize(
    ("thinking", "told"),
    [
        (budget(-1), "at least 0"),
        (budget(1, closing=[]), "nothing that ends"),
        (budget(1, end=""), "nothing that ends"),
        (budget(1, closing=[VOCAB]), f"ends at {VOCAB - 1}"),
    ],
)
def test_a_budget_that_cannot_be_held_is_refused(
    dense_model: Path, thinking: ThinkingBudget, told: str
) -> None:
    with pytest.raises(InvalidRequest, match=told):
        ThinkingLimit(thinking, TEXT, VOCAB)
    run = started(dense_model).run([request(1, thinking), request(2, budget(1))])
    end = run.end(1)
    assert isinstance(end, RequestFailed) and end.error.status == 400
    assert isinstance(run.end(2), Finished)


def test_a_budget_before_the_vocabulary_is_refused(dense_model: Path) -> None:
    run = driver(dense_model).run([request(1, budget(3))])
    end = run.end(1)
    assert isinstance(end, RequestFailed) and "vocabulary" in end.error.message


def test_the_demo_model_answers_in_its_format_after_its_budget() -> None:
    """It knows no tags: they are text, and it would think until it ends."""
    text = load_text_model(locate("demo"))
    engine = Engine.load(EngineOptions(model="demo", device="cpu", threads=1))
    engine.use_vocabulary(text.vocabulary())
    schema = {"enum": ["yes", "no"]}
    wanted = AnswerFormat("json_schema", schema)
    grammar = structured_answer(PLAIN, wanted, text.tokenizer.special, "opened")
    asked = text.chat_prompt([{"role": "user", "content": "Is it warm?"}], context_tokens=999)
    closing = text.tokenizer.encode(END_OF_THINKING)
    assert len(closing) > 1
    run = Driver(engine).run(
        Submit(
            request=number,
            tokens=[*asked.tokens, *text.tokenizer.encode(THINK)],
            max_tokens=60,
            sampling=Sampling(temperature=number / 2, seed=number),
            stop_tokens=list(text.end_tokens),
            grammar=grammar,
            thinking=ThinkingBudget(tokens=number * 4, closing=closing, end=END_OF_THINKING),
        )
        for number in range(4)
    )
    for number in range(4):
        tokens = run.tokens(number)
        parser = family_named("hermes").parser((), text.tokenizer.special, thinking=True)
        detokenizer = Detokenizer(text.tokenizer)
        fed = [event for token in tokens for event in parser.feed(detokenizer.piece(token))]
        events = [*fed, *parser.finish()]
        thoughts = "".join(each.text for each in events if isinstance(each, Reasoning))
        answer = "".join(each.text for each in events if isinstance(each, Text))
        assert answer.strip() in ('"yes"', '"no"')
        assert bool(thoughts) == bool(number)
        begin = number * 4
        assert tokens[begin : begin + len(closing)] == closing
