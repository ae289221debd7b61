"""Requests held to a grammar, by models that would say anything."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from engine.context.batch import Batch
from engine.messages import (
    Admitted,
    Finished,
    GrammarDocument,
    GrammarSource,
    RequestFailed,
    Sampling,
    Submit,
    UseVocabulary,
)
from engine.runtime import grammar, grammar_queue
from tests.runtime.driving import Driver, Interceptor, driver, prompt

LETTERS = """abcdefghijklmnopqrstuvwxyz0123456789{}[]",: !"""
END = len(LETTERS)
"""Behind it the model's vocabulary goes on, the tokenizer's does not."""
VOCABULARY = UseVocabulary(
    tokens=[*(letter.encode() for letter in LETTERS), b"<end>"], special=[END], ends=[END]
)
NUMBERS = 'start: number ("," number)*\nnumber: /[0-9]{1,3}/'
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12, "pattern": "^[a-z]*$"},
        "ids": {"type": "array", "items": {"enum": [1, 2, 3]}, "maxItems": 3},
        "ok": {"type": "boolean"},
    },
    "required": ["name", "ids", "ok"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}


def document(start: str = "start: @answer", schema: Any = None, **named: dict[str, Any]) -> str:
    sources = []
    if schema is not None:
        named = {"answer": {"json_schema": schema}}
        sources = [GrammarSource(param="response_format", what="The schema", json_schema=schema)]
    whole = GrammarDocument(start=start, named=named, sources=sources)
    return msgspec.json.encode(whole).decode()


def request(number: int, wanted: str = "", count: int = 60, **sampling: Any) -> Submit:
    values = {"seed": number, **sampling}
    return Submit(
        request=number,
        tokens=prompt(10 + number, seed=number),
        max_tokens=count,
        sampling=Sampling(**values),
        stop_tokens=[END] if wanted else [],
        grammar=wanted,
    )


def started(model: Path, **changes: Any) -> Driver:
    run = driver(model, prefill_chunk_tokens=16, **changes)
    run.engine.use_vocabulary(VOCABULARY)
    return run


def text(run: Driver, number: int) -> str:
    return "".join(LETTERS[token] for token in run.tokens(number))


def failure(run: Driver, number: int) -> RequestFailed:
    end = run.end(number)
    assert isinstance(end, RequestFailed)
    return end


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_an_answer_is_what_the_grammar_allows_and_ends_with_it(
    model: Path, temperature: float
) -> None:
    run = started(model)
    run.run(
        [request(each, document(schema=SCHEMA), 90, temperature=temperature) for each in (1, 2)]
    )
    for number in (1, 2):
        answer = json.loads(text(run, number))
        assert list(answer) == ["name", "ids", "ok"] and set(answer["ids"]) <= {1, 2, 3}
        end = run.end(number)
        assert isinstance(end, Finished) and end.reason == "stop" and end.stop_token is None
        assert end.completion_tokens == len(run.tokens(number))


def test_rows_with_and_without_a_grammar_give_what_they_give_alone(model: Path) -> None:
    wanted = [
        request(1, document(schema=SCHEMA)),
        request(2),
        request(3, document(NUMBERS), 20, temperature=0),
        request(4, top_k=5, presence_penalty=0.5),
    ]
    together = started(model).run(wanted)
    for submit in wanted:
        assert together.tokens(submit.request) == started(model).run([submit]).tokens(
            submit.request
        )


def test_an_end_is_sampled_only_where_the_grammar_may_end(model: Path) -> None:
    """Bias wants the end at once; without a grammar it would be the first token."""
    run = started(model)
    bias = {END: 1000.0}
    run.run(
        [request(1, document('start: "ab" "c"? "d"*'), bias=bias), request(2, "", 3, bias=bias)]
    )
    end = run.end(1)
    assert text(run, 1) == "ab" and isinstance(end, Finished) and end.stop_token == END
    assert run.tokens(2) == [END] * 3


def test_bias_and_penalties_choose_among_what_is_allowed(model: Path) -> None:
    run = started(model)
    a, b, forbidden = map(LETTERS.index, "ab!")
    grammar_text = document("start: /[abc]{6}/")
    run.run(
        [
            request(1, grammar_text, bias={b: 1000.0, forbidden: 2000.0}),
            request(2, grammar_text, bias={a: 1000.0, b: 995.0}, frequency_penalty=2.0),
        ]
    )
    assert text(run, 1) == "bbbbbb"
    assert sorted(text(run, 2)) == list("aaaabb")


def test_ids_beyond_the_tokenizers_are_never_sampled(model: Path) -> None:
    run = started(model)
    bias = dict.fromkeys(range(END + 1, 96), 1000.0)
    run.run([request(1, document("start: /.{30}/"), bias=bias)])
    assert len(run.tokens(1)) == 30 and max(run.tokens(1)) < END


def test_a_preempted_answer_goes_on_where_it_was(model: Path) -> None:
    wanted = [request(each, document("start: /[a-z]{40}/"), 40) for each in (1, 2, 3)]
    run = started(model, kv_tokens=96).run(wanted)
    assert run.engine.scheduler.preemptions > 0
    for submit in wanted:
        alone = started(model).run([submit])
        assert run.tokens(submit.request) == alone.tokens(submit.request)


def test_a_step_that_is_repeated_leaves_the_grammar_where_it_was(model: Path) -> None:
    left = [3]

    def fails_now_and_then(batch: Batch, compute: Any) -> torch.Tensor:
        logits: torch.Tensor = compute()
        if len(batch.sequences) > 1 and int(batch.positions[-1]) % 7 == 0 and left[0]:
            left[0] -= 1
            raise RuntimeError("broken kernel")
        return logits

    wanted = [request(each, document(schema=SCHEMA), 90) for each in (1, 2)]
    run = driver(
        model, prepare=lambda parts: Interceptor(parts, fails_now_and_then), prefill_chunk_tokens=16
    )
    run.engine.use_vocabulary(VOCABULARY)
    run.run(wanted)
    assert left == [0]
    for submit in wanted:
        assert run.tokens(submit.request) == started(model).run([submit]).tokens(submit.request)


def test_what_cannot_be_compiled_is_refused_and_others_go_on(dense_model: Path) -> None:
    bad = {"type": "object", "properties": {"a": {"items": {"type": "strin"}}}}
    run = started(dense_model)
    run.run(
        [
            request(1),
            request(2, document(schema=bad)),
            request(3, document("start: nothing")),
            request(4, "no document"),
            request(5, document("start: /a/ " + "x" * grammar.MAX_CHARS)),
            request(6, document(NUMBERS), 5),
            request(7, document(schema={"const": "x" * grammar.MAX_CHARS})),
        ]
    )
    error = failure(run, 7).error
    assert "characters" in error.message and error.param == "response_format"
    error = failure(run, 2).error
    assert error.message == (
        "The schema cannot be compiled, at /properties/a/items: Invalid type: strin"
    )
    assert (error.code, error.status, error.param) == ("invalid_request", 400, "response_format")
    for number, why in ((3, "unknown name"), (4, "no document"), (5, "characters")):
        error = failure(run, number).error
        assert why in error.message and (error.status, error.param) == (400, "grammar")
    assert isinstance(run.end(1), Finished) and isinstance(run.end(6), Finished)
    assert not any(isinstance(e, Admitted) and e.request in (2, 3, 4, 5) for e in run.events)


def test_a_grammar_before_the_vocabulary_is_refused(dense_model: Path) -> None:
    run = driver(dense_model).run([request(1, document(NUMBERS)), request(2, "", 3)])
    assert "vocabulary" in failure(run, 1).error.message
    assert isinstance(run.end(2), Finished)


def test_a_grammar_that_becomes_too_much_work_ends_its_request_alone(dense_model: Path) -> None:
    """So many properties may follow that the parser gives up after the opening brace."""
    many = {"type": "object", "properties": {f"p{each}": {} for each in range(2500)}}
    run = started(dense_model)
    run.run([request(1, document(schema=many)), request(2, "", 40)])
    assert "could not be followed" in failure(run, 1).error.message
    assert failure(run, 1).error.param == "response_format"
    assert isinstance(run.end(2), Finished)


def test_others_go_on_while_a_grammar_is_compiled(dense_model: Path) -> None:
    words = "|".join(f"w{each}x{each * 7}" for each in range(30_000))
    run = started(dense_model)
    run.engine.submit(request(1, document(f"start: /{words}/")))
    run.run([request(2, "", 20)])
    admitted = [event.request for event in run.events if isinstance(event, Admitted)]
    assert admitted == [2, 1] and text(run, 1)[0] == "w"


def test_a_grammar_that_takes_too_long_is_given_up(
    dense_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_queue, "COMPILE_SECONDS", 0.0)
    words = "|".join(f"w{each}x{each * 7}" for each in range(30_000))
    run = started(dense_model).run([request(1, document(f"start: /{words}/")), request(2, "", 3)])
    assert "not compiled within" in failure(run, 1).error.message
    assert isinstance(run.end(2), Finished)


def test_requests_are_cancelled_whatever_their_grammar_does(dense_model: Path) -> None:
    run = started(dense_model)
    for number in (1, 2):
        run.engine.submit(request(number, document("start: /[a-z]{50}/")))
    run.engine.cancel(1)  # not compiled yet
    deadline = time.monotonic() + 60
    while len(run.tokens(2)) < 5 and time.monotonic() < deadline:
        run.step()
    run.engine.cancel(2)
    run.run([request(3, document(NUMBERS), 5)])
    for number in (1, 2):
        end = run.end(number)
        assert isinstance(end, Finished) and end.reason == "cancelled"
    assert isinstance(run.end(3), Finished)


def test_a_stop_string_ends_an_answer_within_its_grammar(dense_model: Path) -> None:
    run = started(dense_model)
    run.engine.submit(request(1, document("start: /[a-z]{50}/")))
    while len(run.tokens(1)) < 5:
        run.step()
    run.engine.stop_at(1, 3)
    end = run.run().end(1)
    assert isinstance(end, Finished) and (end.reason, end.completion_tokens) == ("stop", 3)


def test_a_grammar_that_ends_with_the_last_token_has_stopped(dense_model: Path) -> None:
    run = started(dense_model).run(
        [request(1, document("start: /[a-z]{5}/"), 5), request(2, document("start: /[a-z]{6}/"), 5)]
    )
    ends = [run.end(1), run.end(2)]
    assert [end.reason for end in ends if isinstance(end, Finished)] == ["stop", "length"]


def test_the_newest_vocabulary_counts(dense_model: Path) -> None:
    run = started(dense_model)
    shifted = [b"x", *VOCABULARY.tokens[:-1]]
    run.engine.use_vocabulary(msgspec.structs.replace(VOCABULARY, tokens=shifted))
    run.run([request(1, document("start: /abc/"))])
    assert text(run, 1) == "bcd"
