"""Thinking, tools and formats in Anthropic's messages, by its own client, streamed and whole."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest

from tests.server.running import frames
from tests.server.speaking import Speaker

ASK: list[Any] = [{"role": "user", "content": "Weather?"}]
WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "Tells the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    "cache_control": {"type": "ephemeral"},
}
PING: dict[str, Any] = {"name": "ping", "input_schema": {"type": "object"}}


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def both(speaker: Speaker, **fields: Any) -> Any:
    """The whole answer, which the stream says too."""
    asked: Any = {"max_tokens": 500, "messages": ASK, "tools": [WEATHER, PING], **fields}
    whole = speaker.anthropic.messages.create(model=speaker.model, **asked)
    with speaker.anthropic.messages.stream(model=speaker.model, **asked) as stream:
        final: Any = stream.get_final_message()
    for one, other in zip(whole.content, final.content, strict=True):
        ours, streamed = one.to_dict(), other.to_dict()
        assert ours.pop("id", "") != streamed.pop("id", "x") or one.type != "tool_use"
        streamed.pop("parsed_output", None)
        assert ours == streamed
    assert (whole.stop_reason, whole.stop_sequence) == (final.stop_reason, final.stop_sequence)
    assert whole.usage.output_tokens == final.usage.output_tokens
    return whole


def test_blocks_of_every_kind(hermes: Speaker) -> None:
    said = f"<think>\nTwo.\n</think>\n\nI look.\n{call('weather', city='Oslo')}\n{call('ping')}"
    hermes.says(said)
    answer = both(hermes, thinking={"type": "enabled", "budget_tokens": 1024})
    thought, text, weather, ping = answer.content
    assert thought.thinking == "Two." and thought.signature
    assert text.text == "I look." and answer.stop_reason == "tool_use"
    assert (weather.name, weather.input) == ("weather", {"city": "Oslo"})
    assert (ping.name, ping.input) == ("ping", {}) and weather.id != ping.id
    assert answer.usage.cache_read_input_tokens == 2
    assert answer.usage.input_tokens == len(hermes.asked()["tokens"]) - 2


def test_the_events_of_blocks(hermes: Speaker) -> None:
    hermes.says(f"<think>Hm.</think>Yes.{call('weather', city='Oslo')}")
    body = {
        "model": hermes.model,
        "messages": ASK,
        "tools": [WEATHER],
        "max_tokens": 99,
        "stream": True,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    }
    with hermes.server.http.stream("POST", "/v1/messages?beta=true", json=body) as response:
        seen = [frame for frame in frames(response) if frame["type"] != "ping"]
    assert seen[0]["type"] == "message_start" and seen[-1]["type"] == "message_stop"
    assert seen[-2]["context_management"] == {"applied_edits": []}
    opened: list[int] = []
    deltas: dict[int, list[str]] = {}
    for frame in seen[1:-2]:
        match frame["type"]:
            case "content_block_start":
                opened.append(frame["index"])
            case "content_block_delta":
                assert frame["index"] == opened[-1]
                deltas.setdefault(frame["index"], []).append(frame["delta"]["type"])
            case "content_block_stop":
                assert frame["index"] == opened[-1]
    assert opened == [0, 1, 2]
    assert deltas[0][-1] == "signature_delta" and set(deltas[0][:-1]) == {"thinking_delta"}
    assert set(deltas[1]) == {"text_delta"} and set(deltas[2]) == {"input_json_delta"}


def test_a_stop_sequence_is_told(hermes: Speaker) -> None:
    hermes.says("<think>END?</think>Paris, the END of it.")
    answer = both(hermes, stop_sequences=["never", "END"])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "END")
    assert answer.content[1].text == "Paris, the "


def test_a_call_that_is_cut_has_an_object_all_the_same(hermes: Speaker) -> None:
    said = call("weather", city="Oslo", days=3)
    hermes.says(said)
    for letters, least in ((45, {}), (len(said) - 18, {"city": "Oslo"})):
        answer = both(hermes, max_tokens=hermes.count(said[:letters]))
        assert answer.stop_reason == "max_tokens"
        assert isinstance(answer.content[0].input, dict) and least.items() <= (
            answer.content[0].input.items()
        )


def test_one_call_and_no_tools(hermes: Speaker) -> None:
    hermes.says(f"{call('weather', city='Oslo')}\n{call('ping')}")
    answer = both(hermes, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert [block.type for block in answer.content] == ["tool_use"]
    answer = both(hermes, tool_choice={"type": "none"})
    assert [block.type for block in answer.content] == ["text"]
    assert "Tells the weather." not in hermes.prompt()


def test_nothing_is_a_block_of_empty_text(hermes: Speaker) -> None:
    hermes.says("")
    answer = both(hermes)
    assert answer.content[0].text == "" and answer.stop_reason == "end_turn"


def test_thinking_is_off_unless_asked_for(hermes: Speaker) -> None:
    hermes.says("Rain.")
    off = "<think>\n\n</think>\n\n"
    for thinking, expected in (
        (None, True),
        ({"type": "disabled"}, True),
        ({"type": "enabled", "budget_tokens": 1024}, False),
        ({"type": "adaptive", "display": "summarized"}, False),
    ):
        both(hermes, **({} if thinking is None else {"thinking": thinking}))
        assert hermes.prompt().endswith(off) == expected


def test_a_history_of_tool_use_reaches_the_model(hermes: Speaker) -> None:
    hermes.says("Rain.")
    history: list[Any] = [
        *ASK,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I look.", "signature": "theirs"},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "rain"},
                {
                    "type": "document",
                    "title": "Report",
                    "source": {"type": "text", "media_type": "text/plain", "data": "It rains."},
                },
                {"type": "text", "text": "Well?"},
            ],
        },
        {"role": "system", "content": "Be kind."},
    ]
    system: Any = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    both(hermes, messages=history, system=system)
    prompt = hermes.prompt()
    said = (
        "Be brief.",
        "I look.",
        '{"city": "Oslo"}',
        "tool\nrain",
        "user\nReport\nIt rains.\nWell?",
    )
    said = (*said, "Be kind.")
    places = [prompt.index(each) for each in said]
    assert places == sorted(places)
    counted = hermes.anthropic.messages.count_tokens(
        model=hermes.model, messages=history, system=system, tools=[WEATHER, PING]
    )
    assert counted.input_tokens == len(hermes.asked()["tokens"])


def test_what_agents_send_besides(hermes: Speaker) -> None:
    hermes.says("Rain.")
    both(
        hermes,
        extra_headers={"anthropic-beta": "made-up-2030-01-01"},
        extra_body={
            "betas": ["x"],
            "speed": "fast",
            "inference_geo": "eu",
            "output_config": {"effort": "high"},
            "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
            "metadata": {"user_id": "u"},
        },
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
        ({"tools": [{"input_schema": {"type": "object"}}]}, "tools[0].name"),
        ({"tool_choice": {"type": "sometimes"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "tool", "name": "other"}}, "'other'"),
        ({"tool_choice": {"type": "any"}, "tools": []}, "no tools"),
        ({"thinking": {"type": "perhaps"}}, "thinking.type"),
        ({"extra_body": {"output_config": {"format": {"type": "poem"}}}}, "output_config.format"),
        ({"extra_body": {"mcp_servers": [{"url": "x"}]}}, "mcp_servers"),
    ],
)
def test_what_is_refused_is_named(hermes: Speaker, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(anthropic.BadRequestError) as raised:
        both(hermes, **fields)
    body: Any = raised.value.body
    assert words in body["error"]["message"], body
