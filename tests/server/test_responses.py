"""The Responses API by OpenAI's client, streamed and whole."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.server.running import frames
from tests.server.speaking import Speaker

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "description": "Tells the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}


FORCED = {"tool_choice": "required"}
NESTED = f"start: /{'[' * 1000}a{']' * 1000}/"


def custom(definition: str, **fields: Any) -> dict[str, Any]:
    """A tool of one grammar; of a format that is a text where that is no grammar."""
    wanted: Any = {"type": "grammar", "syntax": "lark", "definition": definition}
    wanted = wanted if definition.startswith("start") else definition
    return {"type": "custom", "name": "edit", "format": wanted, **fields}


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def ask(speaker: Speaker, **fields: Any) -> Any:
    fields = {"input": "Weather?", "tools": [WEATHER], **fields}
    return speaker.openai.responses.create(model=speaker.model, **fields)


def streamed(speaker: Speaker, **fields: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The events, which are in order and complete, and the response that the last one has."""
    body = {"model": speaker.model, "input": "Weather?", "tools": [WEATHER], **fields}
    with speaker.server.http.stream(
        "POST", "/v1/responses", json={**body, "stream": True}
    ) as response:
        assert response.status_code == 200, response.read()
        events = list(frames(response))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1]["type"] in ("response.completed", "response.incomplete")
    final = events[-1]["response"]
    for at, item in enumerate(final["output"]):
        of_it = [event for event in events if event.get("output_index") == at]
        assert of_it[0]["type"] == "response.output_item.added"
        assert of_it[-1]["type"] == "response.output_item.done" and of_it[-1]["item"] == item
        assert {event["item_id"] for event in of_it[1:-1]} == {item["id"]}
        deltas = "".join(event["delta"] for event in of_it if event["type"].endswith(".delta"))
        part = item["content"][0]["text"] if "content" in item else None
        assert deltas == (part if part is not None else item.get("arguments", item.get("input")))
    return events, final


def both(speaker: Speaker, **fields: Any) -> Any:
    """The whole response, which the stream says too; also put together by the client."""
    whole = ask(speaker, **fields)
    _, final = streamed(speaker, **fields)
    finals = [final]
    if whole.status == "completed":  # the client has no helper for others
        with speaker.openai.responses.stream(
            model=speaker.model, **{"input": "Weather?", "tools": [WEATHER], **fields}
        ) as stream:
            finals.append(stream.get_final_response().to_dict())
    for other in finals:
        assert len(other["output"]) == len(whole.output) and other["status"] == whole.status
        for one, item in zip(whole.output, other["output"], strict=True):
            assert one.type == item["type"] and one.status == item["status"]
            assert item.get("arguments") == getattr(one, "arguments", None)
        assert other["usage"]["output_tokens"] == whole.usage.output_tokens
    return whole


def test_items_of_every_kind(hermes: Speaker) -> None:
    hermes.says(f"<think>\nOne.\n</think>\n\nI look.\n{call('weather', city='Oslo')}")
    answer = both(hermes)
    thought, message, called = answer.output
    assert thought.content[0].text == "One." and thought.summary == []
    assert message.content[0].text == answer.output_text == "I look."
    assert message.content[0].annotations == [] and message.role == "assistant"
    assert json.loads(called.arguments) == {"city": "Oslo"} and called.name == "weather"
    assert answer.status == "completed" and answer.error is None
    assert answer.tools[0].name == "weather" and answer.tool_choice == "auto"
    usage = answer.usage
    assert usage.input_tokens + usage.output_tokens == usage.total_tokens
    assert usage.output_tokens_details.reasoning_tokens > 0
    assert usage.input_tokens_details.cached_tokens == 2


def test_an_answer_that_is_cut(hermes: Speaker) -> None:
    hermes.says("It rains and rains.")
    answer = both(hermes, max_output_tokens=hermes.count("It rains"))
    assert answer.status == "incomplete" and answer.output_text == "It rains"
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output[0].status == "incomplete"
    hermes.says("")
    assert both(hermes).output_text == ""


def test_logprobs(hermes: Speaker) -> None:
    hermes.says("It rains.")
    answer = both(hermes, include=["message.output_text.logprobs"], top_logprobs=2)
    entries = answer.output[0].content[0].logprobs
    assert b"".join(bytes(entry.bytes) for entry in entries) == b"It rains."
    assert len(entries[0].top_logprobs) == 2


def test_a_response_goes_on_from_another(hermes: Speaker) -> None:
    hermes.says(f"<think>Hm.</think>I look. {call('weather', city='Oslo')}", "Rain.")
    first = ask(hermes, instructions="Be brief.")
    asked = first.output[-1]
    result = {"type": "function_call_output", "call_id": asked.call_id, "output": "rain"}
    second = ask(hermes, input=[result], previous_response_id=first.id)
    assert second.output_text == "Rain." and second.previous_response_id == first.id
    prompt = hermes.prompt()
    said = ("Weather?", "Hm.", "I look.", '{"city": "Oslo"}', "tool\nrain")
    places = [prompt.index(each) for each in said]
    assert places == sorted(places)
    assert "Be brief." not in prompt, "instructions are a request's own"
    api = hermes.openai.responses
    assert api.retrieve(first.id).to_dict() == first.to_dict()
    assert [item.type for item in api.input_items.list(second.id)] == ["function_call_output"]
    api.delete(first.id)
    with pytest.raises(openai.NotFoundError, match="never stored"):
        api.retrieve(first.id)
    hermes.says("Sun.")
    assert ask(hermes, previous_response_id=second.id).output_text == "Sun."
    assert '{"city": "Oslo"}' in hermes.prompt(), "what a response went on from lives on in it"


def test_what_is_not_stored_is_not_found(hermes: Speaker) -> None:
    hermes.says("Rain.")
    for answer in (ask(hermes, store=False).id, "resp_none"):
        with pytest.raises(openai.BadRequestError) as raised:
            ask(hermes, previous_response_id=answer)
        assert raised.value.code == "previous_response_not_found"
    _, final = streamed(hermes)
    assert ask(hermes, previous_response_id=final["id"]).output_text == "Rain."
    with pytest.raises(openai.BadRequestError, match="background"):
        hermes.openai.responses.cancel(final["id"])


def test_clients_that_store_for_themselves(hermes: Speaker) -> None:
    """Items come back as they went out; reasoning also as no more than its sealed text."""
    hermes.says(f"<think>Secret.</think>{call('weather', city='Oslo')}", "Rain.")
    first = ask(hermes, store=False, include=["reasoning.encrypted_content"])
    thought, called = (item.to_dict() for item in first.output)
    assert "Secret." not in str(thought["encrypted_content"])
    sent: list[Any] = [
        {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {key: value for key, value in thought.items() if key not in ("content", "status")},
        called,
        {
            "type": "function_call_output",
            "call_id": called["call_id"],
            "output": [{"type": "input_text", "text": each} for each in ("rain", "wind")],
        },
    ]
    ask(hermes, input=sent, store=False)
    prompt = hermes.prompt()
    for said in ("Secret.", '{"city": "Oslo"}', "rain\nwind"):
        assert said in prompt
    foreign = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA", "id": "rs_1"}
    ask(hermes, input=[foreign, {"role": "user", "content": "x"}])


def test_a_broken_call_comes_back(hermes: Speaker) -> None:
    hermes.says('<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "at": "no')
    called = both(hermes).output[0].to_dict()
    assert called["status"] == "incomplete"
    result = {"type": "function_call_output", "call_id": called["call_id"], "output": "no JSON"}
    ask(hermes, input=[{"role": "user", "content": "x"}, called, result])
    assert '{"city": "Oslo", "at": "no"}' in hermes.prompt() and "no JSON" in hermes.prompt()


def test_an_item_by_reference(hermes: Speaker) -> None:
    hermes.says("It rains.", "Still.")
    first = ask(hermes)
    reference: Any = {"type": "item_reference", "id": first.output[0].id}
    ask(hermes, input=[reference, {"role": "user", "content": "And now?"}])
    assert "It rains." in hermes.prompt()
    with pytest.raises(openai.BadRequestError, match="not stored"):
        ask(hermes, input=[{"type": "item_reference", "id": "msg_none"}])


def test_tools_of_every_kind(hermes: Speaker) -> None:
    patch = {
        "type": "custom",
        "name": "apply_patch",
        "description": "Edits.",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x+/"},
    }
    tools: list[Any] = [
        patch,
        {"type": "namespace", "name": "crew", "description": "", "tools": [WEATHER]},
        {"type": "web_search", "external_web_access": False},
    ]
    hermes.says(call("apply_patch", input="*** a\nb") + call("crew__weather", city="Oslo"))
    custom, spaced = both(hermes, tools=tools).output
    assert (custom.type, custom.name, custom.input) == (
        "custom_tool_call",
        "apply_patch",
        "*** a\nb",
    )
    assert (spaced.name, spaced.namespace) == ("weather", "crew")
    assert "start: /x+/" in hermes.prompt() and "web_search" not in hermes.prompt()
    results: list[Any] = [
        {"role": "user", "content": "x"},
        custom.to_dict(),
        spaced.to_dict(),
        {"type": "custom_tool_call_output", "call_id": custom.call_id, "output": "done"},
        {"type": "function_call_output", "call_id": spaced.call_id, "output": "rain"},
    ]
    ask(hermes, tools=tools, input=results)
    assert '"name": "crew__weather"' in hermes.prompt() and "*** a" in hermes.prompt()


def test_what_codex_sends(hermes: Speaker) -> None:
    hermes.says("Yes.")
    events, _ = streamed(
        hermes,
        input=[
            {"type": "message", "role": role, "content": [{"type": "input_text", "text": "x"}]}
            for role in ("developer", "developer", "user", "user")
        ],
        tool_choice="auto",
        parallel_tool_calls=True,
        reasoning={"effort": "medium", "summary": "auto"},
        store=False,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="k",
        client_metadata={"session_id": "s"},
        text={"verbosity": "medium"},
    )
    assert events[-1]["response"]["store"] is False


def test_tokens_are_counted_as_they_are_used(hermes: Speaker) -> None:
    hermes.says("Yes.")
    fields: Any = {"input": "Weather?", "instructions": "Be brief.", "tools": [WEATHER]}
    counted = hermes.openai.responses.input_tokens.count(model=hermes.model, **fields)
    assert counted.input_tokens == ask(hermes, **fields).usage.input_tokens


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": "word " * 300_000}, "input"),
        ({"input": [{"type": "poem"}]}, "input[0]"),
        ({"input": [{"role": "oracle", "content": "x"}]}, "input[0].role"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0]",
        ),
        ({"input": [{"role": "user", "content": 7}]}, "input[0].content"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"tools": [{"type": "mcp"}]}, "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [custom("grammar")]}, "tools[0].format"),
        ({"tools": [custom(r'start: "\ud800"')], **FORCED}, "tools[0].format.definition"),
        ({"tools": [custom(r'start: "\ud800"i')], **FORCED}, "tools[0].format.definition"),
        ({"tools": [custom(f'start: "{"a" * 65_536}"')]}, "tools[0].format.definition"),
        ({"tools": [custom(NESTED)], **FORCED}, "tools[0].format.definition"),
        ({"tools": [custom("start: /a/", strict="no")]}, "tools[0].strict"),
        ({"tools": [{"type": "namespace", "tools": [WEATHER]}]}, "tools[0].name"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"background": True}, "background"),
        ({"include": ["everything"]}, "include"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"extra_body": {"made_up": 1}}, "made_up"),
    ],
)
def test_what_is_refused_is_named(hermes: Speaker, fields: dict[str, Any], param: str) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as raised:
            ask(hermes, stream=stream, **fields)
        assert raised.value.param == param, raised.value
