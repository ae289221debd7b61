"""Answers that go on from a beginning of the client's own, and how much a model reasons first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest

from tests.server.speaking import HERMES, Speaker, speaking

EFFORT = "Effort: {{ reasoning_effort | default('unsaid') }}" + HERMES
ASK: list[Any] = [{"role": "user", "content": "Capital?"}]
BEGUN: list[Any] = [*ASK, {"role": "assistant", "content": "The capital is "}]
CONTINUE = {"continue_final_message": True, "add_generation_prompt": False}


@pytest.fixture(scope="module")
def speaker(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Speaker]:
    with speaking(tiny_model, tmp_path_factory.mktemp("speaker"), EFFORT) as started:
        yield started


def chat(speaker: Speaker, **fields: Any) -> Any:
    return speaker.openai.chat.completions.create(
        model=speaker.model, **{"messages": ASK, **fields}
    )


def message(speaker: Speaker, **fields: Any) -> Any:
    return speaker.anthropic.messages.create(
        model=speaker.model, **{"messages": ASK, "max_tokens": 100, **fields}
    )


def streamed(chunks: Any) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def test_openai_clients_continue_a_message(speaker: Speaker) -> None:
    speaker.says("Oslo.")
    whole = chat(speaker, messages=BEGUN, extra_body=CONTINUE)
    assert whole.choices[0].message.content == "Oslo."
    assert speaker.prompt().endswith("<|im_start|>assistant\nThe capital is ")
    assert whole.usage.prompt_tokens == len(speaker.asked()["tokens"])
    assert streamed(chat(speaker, messages=BEGUN, extra_body=CONTINUE, stream=True)) == "Oslo."
    chat(speaker, messages=BEGUN, extra_body={"continue_final_message": True})
    assert speaker.prompt().endswith("The capital is ")


def test_without_asking_the_assistant_takes_another_turn(speaker: Speaker) -> None:
    speaker.says("Oslo.")
    chat(speaker, messages=BEGUN)
    assert speaker.prompt().endswith("is <|im_end|>\n<|im_start|>assistant\n")
    chat(speaker, messages=BEGUN, extra_body={"add_generation_prompt": False})
    assert speaker.prompt().endswith("The capital is <|im_end|>\n")


def test_anthropic_clients_begin_the_answer(speaker: Speaker) -> None:
    speaker.says("Oslo.")
    begun = [*ASK, {"role": "assistant", "content": [{"type": "text", "text": "The capital is "}]}]
    for messages in (BEGUN, begun):
        answer = message(speaker, messages=messages)
        assert [block.text for block in answer.content] == ["Oslo."]
        assert speaker.prompt().endswith("<|im_start|>assistant\nThe capital is ")
        counted = speaker.anthropic.messages.count_tokens(model=speaker.model, messages=messages)
        assert counted.input_tokens == len(speaker.asked()["tokens"])
    with speaker.anthropic.messages.stream(
        model=speaker.model, messages=BEGUN, max_tokens=100
    ) as stream:
        assert "".join(stream.text_stream) == "Oslo."


def test_a_beginning_may_be_in_the_midst_of_a_thought(speaker: Speaker) -> None:
    speaker.says("m.\n</think>\n\nOslo.")
    thinking = [*ASK, {"role": "assistant", "content": "<think>\nH"}]
    choice = chat(speaker, messages=thinking, extra_body=CONTINUE).choices[0]
    assert choice.message.content == "Oslo." and choice.message.reasoning_content == "m."


def test_a_beginning_counts_for_neither_stops_nor_calls(speaker: Speaker) -> None:
    tool = {"type": "function", "function": {"name": "ping"}}
    speaker.says('capital<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>')
    choice = chat(speaker, messages=BEGUN, extra_body=CONTINUE, tools=[tool], stop="The").choices[0]
    assert choice.message.content == "capital" and choice.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"name": "ping", "input_schema": {}}], "tool_choice": {"type": "any"}},
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
    ],
)
def test_a_beginning_is_not_held_to_a_format(speaker: Speaker, fields: dict[str, Any]) -> None:
    with pytest.raises(anthropic.BadRequestError, match="continued cannot be held"):
        message(speaker, messages=BEGUN, **fields)


def test_tokens_are_told_of_what_would_be_rendered(speaker: Speaker) -> None:
    speaker.says("Oslo.")
    off = {"chat_template_kwargs": {"thinking": False}}
    for fields in ({}, CONTINUE, {"add_generation_prompt": False}, off):
        chat(speaker, messages=BEGUN, extra_body=fields)
        body = {"messages": BEGUN, **fields}
        answer = speaker.server.http.post("/v1/tokenize", json=body).json()
        assert answer["tokens"] == speaker.asked()["tokens"]


@pytest.mark.parametrize(
    ("effort", "told"),
    [
        ("minimal", "low"),
        ("low", "low"),
        ("medium", "medium"),
        ("high", "high"),
        ("xhigh", "high"),
    ],
)
def test_every_protocol_has_the_same_scale(speaker: Speaker, effort: str, told: str) -> None:
    speaker.says("Oslo.")
    chat(speaker, reasoning_effort=effort)
    assert f"Effort: {told}<" in speaker.prompt()
    speaker.openai.responses.create(
        model=speaker.model, input="Capital?", reasoning={"effort": effort}
    )
    assert f"Effort: {told}<" in speaker.prompt()
    asked = {"thinking": {"type": "adaptive"}, "output_config": {"effort": effort}}
    message(speaker, extra_body=asked)
    assert f"Effort: {told}<" in speaker.prompt()


def test_a_budget_is_an_effort_where_the_template_knows_only_that(speaker: Speaker) -> None:
    speaker.says("Oslo.")
    for budget, told in ((1024, "low"), (4096, "medium"), (31_999, "high")):
        thinking: Any = {"type": "enabled", "budget_tokens": budget}
        message(speaker, thinking=thinking, max_tokens=32_000)
        assert f"Effort: {told}<" in speaker.prompt()
        chat(speaker, extra_body={"thinking_budget": budget})
        assert f"Effort: {told}<" in speaker.prompt()
        chat(speaker, extra_body={"thinking": thinking})
        assert f"Effort: {told}<" in speaker.prompt()


def test_none_switches_it_off_in_every_protocol(speaker: Speaker) -> None:
    speaker.says("Oslo.")
    over = "<think>\n\n</think>\n\n"
    chat(speaker, reasoning_effort="none")
    assert speaker.prompt().endswith(over)
    speaker.openai.responses.create(
        model=speaker.model, input="Capital?", reasoning={"effort": "none"}
    )
    assert speaker.prompt().endswith(over)
    message(speaker)
    assert speaker.prompt().endswith(over)


@pytest.fixture(scope="module")
def thinker(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Speaker]:
    """Its template has efforts, and no way to switch reasoning off."""
    always = EFFORT.replace("enable_thinking", "never_read")
    with speaking(tiny_model, tmp_path_factory.mktemp("thinker"), always) as started:
        yield started


@pytest.mark.parametrize(
    ("field", "sent"),
    [
        ("reasoning_effort", {"reasoning_effort": "none"}),
        ("enable_thinking", {"enable_thinking": False}),
        ("thinking.type", {"thinking": {"type": "disabled"}}),
        ("thinking_budget", {"thinking_budget": 0}),
        ("thinking.budget_tokens", {"thinking": {"type": "enabled", "budget_tokens": 0}}),
    ],
)
def test_who_cannot_switch_reasoning_off_is_told_what_asked_for_it(
    thinker: Speaker, field: str, sent: dict[str, Any]
) -> None:
    fields = {"model": thinker.model, "messages": ASK, "reasoning_effort": "high", **sent}
    answer = thinker.server.http.post("/v1/chat/completions", json=fields)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == field
    assert f"'none', which {field} asks for" in error["message"]


IMAGE = "data:image/png;base64,iVBORw0KGgo="


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        ),
        (
            "/v1/responses",
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": IMAGE}]}]},
        ),
        (
            "/v1/messages",
            {
                "max_tokens": 9,
                "messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}],
            },
        ),
        (
            "/v1/responses",
            {
                "input": [
                    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                    {
                        "type": "function_call_output",
                        "call_id": "c",
                        "output": [{"type": "input_image", "image_url": IMAGE}],
                    },
                ]
            },
        ),
        (
            "/v1/messages",
            {
                "max_tokens": 9,
                "messages": [
                    {
                        "role": "assistant",
                        "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}],
                    },
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "tool_result",
                                "tool_use_id": "t",
                                "content": [{"type": "image", "source": {}}],
                            }
                        ],
                    },
                ],
            },
        ),
    ],
)
def test_images_are_refused_in_plain_words(speaker: Speaker, path: str, body: Any) -> None:
    answer = speaker.server.http.post(path, json={"model": speaker.model, **body})
    assert answer.status_code == 400
    assert "reads text only" in answer.json()["error"]["message"]
