"""Plain completions and the tokenizer's endpoints."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.server.speaking import Speaker


def ask(speaker: Speaker, **fields: Any) -> Any:
    return speaker.openai.completions.create(model=speaker.model, **{"prompt": "One", **fields})


def streamed(answer: Any) -> dict[int, str]:
    texts: dict[int, str] = {}
    for choice in (choice for chunk in answer for choice in chunk.choices):
        texts[choice.index] = texts.get(choice.index, "") + choice.text
    return texts


def test_lists_of_prompts_and_several_answers(hermes: Speaker) -> None:
    hermes.says("two", "deux", "zwei", "due")
    answer = ask(hermes, prompt=["One", "Un"], n=2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert {choice.text for choice in answer.choices} == {"two", "deux", "zwei", "due"}
    prompts = [each["tokens"] for each in hermes.heard()[-4:]]
    assert prompts[0] == prompts[1] != prompts[2] == prompts[3]
    assert answer.usage.prompt_tokens == hermes.count("One") + hermes.count("Un")
    ids = [hermes.tokenizer.encode(each).ids for each in ("One", "Un")]
    texts = streamed(ask(hermes, prompt=ids, n=2, stream=True))
    assert sorted(texts.values()) == ["deux", "due", "two", "zwei"]


@pytest.mark.parametrize("stream", [False, True])
def test_echo(hermes: Speaker, stream: bool) -> None:
    hermes.says(" two")
    ids = hermes.tokenizer.encode("One").ids
    for prompt in ("One", ids):
        answer = ask(hermes, prompt=prompt, echo=True, stream=stream)
        texts = streamed(answer) if stream else {c.index: c.text for c in answer.choices}
        assert texts == {0: "One two"}


def test_no_tokens_at_all(hermes: Speaker) -> None:
    hermes.says("x")
    ask(hermes)
    before = len(hermes.heard())
    answer = ask(hermes, max_tokens=0, echo=True)
    assert answer.choices[0].text == "One" and answer.choices[0].finish_reason == "length"
    assert answer.usage.prompt_tokens == hermes.count("One") == answer.usage.total_tokens
    assert ask(hermes, max_tokens=0).choices[0].text == ""
    assert len(hermes.heard()) == before, "the model need not run"


def test_markup_is_text(hermes: Speaker) -> None:
    said = "<think>Hm.</think><tool_call>"
    hermes.says(said)
    assert ask(hermes, max_tokens=99).choices[0].text == said


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, "x"]}, "prompt"),
        ({"prompt": [[1], [99999]]}, "prompt"),
        ({"prompt": ["x"] * 33, "n": 2}, "prompt"),
        ({"max_tokens": -1}, "max_tokens"),
    ],
)
def test_what_is_refused_is_named(hermes: Speaker, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        ask(hermes, **fields)
    assert raised.value.param == param


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_tokenize_and_back(hermes: Speaker, prefix: str) -> None:
    post = hermes.server.http.post
    ids = hermes.tokenizer.encode("hello world").ids
    for field in ("prompt", "content"):
        answer = post(f"{prefix}/tokenize", json={field: "hello world"}).json()
        assert answer["tokens"] == ids and answer["count"] == len(ids)
    pieces = post(f"{prefix}/tokenize", json={"content": "hello", "with_pieces": True}).json()
    assert "".join(each["piece"] for each in pieces["tokens"]) == "hello"
    back = post(f"{prefix}/detokenize", json={"tokens": ids}).json()
    assert back["prompt"] == back["content"] == "hello world"
    hermes.says("x")
    messages: list[Any] = [{"role": "user", "content": "hi"}]
    chat = hermes.openai.chat.completions.create(model=hermes.model, messages=messages)
    counted = post(f"{prefix}/tokenize", json={"messages": messages}).json()
    assert chat.usage is not None and counted["count"] == chat.usage.prompt_tokens
    plain = post(f"{prefix}/tokenize", json={"messages": messages, "add_special_tokens": False})
    assert plain.json()["tokens"] == counted["tokens"]
    refusals: list[tuple[dict[str, Any], str]] = [
        ({}, "prompt"),
        ({"content": 7}, "content"),
        ({"x": 1}, "x"),
        ({"prompt": "a", "content": "b"}, "content"),
        ({"prompt": "a", "messages": messages}, "messages"),
        ({"content": "", "messages": messages}, "messages"),
        ({"messages": []}, "messages"),
        ({"content": "a", "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"content": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ({"messages": messages, "add_special": True}, "add_special"),
        ({"content": "a", "add_special": True, "add_special_tokens": True}, "add_special"),
        ({"content": "a", "model": ""}, "model"),
    ]
    for body, param in refusals:
        refused = post(f"{prefix}/tokenize", json=body)
        assert refused.status_code == (404 if param == "model" else 400), (body, refused.text)
        assert refused.json()["error"]["param"] == param
    refused = post(f"{prefix}/detokenize", json={"tokens": [99999]})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "tokens"
