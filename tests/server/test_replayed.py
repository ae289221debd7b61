"""What agents send back: calls, results and schemas that are not as they should be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.server.call_arguments import MAX_DEPTH
from tests.server.speaking import Speaker

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
USER = {"role": "user", "content": "hi"}
CUT = '{"city": "Oslo", "note": "It ra'


def post(speaker: Speaker, path: str, **fields: Any) -> Any:
    answer = speaker.server.http.post(path, json={"model": speaker.model, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def chat(speaker: Speaker, *messages: Any, **fields: Any) -> Any:
    return post(speaker, CHAT, messages=[USER, *messages], **fields)


def called(arguments: Any, **fields: Any) -> list[dict[str, Any]]:
    function = {"name": "f", "arguments": arguments}
    call = {"id": "1", "type": "function", "function": function, **fields}
    result = {"role": "tool", "tool_call_id": "1", "content": "seven"}
    return [{"role": "assistant", "content": None, "tool_calls": [call]}, result]


def nested(depth: int) -> list[Any]:
    return [nested(depth - 1)] if depth > 1 else []


DEEP = '"x": ' + "[" * 900 + "]" * 900


@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        (CUT, {"city": "Oslo", "note": "It ra"}),
        ('{"ci', {}),
        ('{"a": ' * 300, {}),  # a model that ran away
        ('{"a": ' * 5000, {}),
        ('{"a": [1, {"b": "x", "c', {"a": [1, {"b": "x"}]}),
        ("[" * 5000, {"arguments": "[" * 5000}),
        ("{", {}),
        ('{"a": 1,}', {"a": 1}),
        ('{"a": 1}{"b": 2}', {"a": 1}),
        *[
            (text, {"arguments": text})
            for text in (
                '{"city": Oslo}',
                "{'city': 'Oslo'}",
                '{"a": NaN}',
                r'{"a": "\ud800"}',
                '"Oslo"',
                "[1]",
                "7",
                "true",
                "```json",
                "[{",
            )
        ],
        ("{" + DEEP + "}", {"x": nested(MAX_DEPTH - 1)}),
        (" ", {}),
        ("", {}),
        ("null", {}),
        ({"a": 1}, {"a": 1}),
    ],
)
def test_a_call_comes_back_as_far_as_it_was_written(
    hermes: Speaker, arguments: Any, read: Any
) -> None:
    """Whatever a model writes is handed to clients, and they send it back: a request that was
    refused for it would be refused for ever."""
    hermes.says("Well.")
    chat(hermes, *called(arguments))
    assert json.dumps(read) in hermes.prompt()
    if isinstance(arguments, str):
        item = {"type": "function_call", "call_id": "1", "name": "f", "arguments": arguments}
        result = {"type": "function_call_output", "call_id": "1", "output": None}
        post(hermes, RESPONSES, input=[USER, item, result])
        assert json.dumps(read) in hermes.prompt()
    use = {"type": "tool_use", "id": "1", "name": "f", "input": arguments}
    done = {"type": "tool_result", "tool_use_id": "1", "content": "seven"}
    turns = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [done]}]
    post(hermes, MESSAGES, max_tokens=9, messages=[USER, *turns])
    assert json.dumps(read) in hermes.prompt()


def test_arguments_that_a_client_has_read(hermes: Speaker) -> None:
    """Clients of Anthropic's protocol read them as JSON, whatever it holds; others may."""
    hermes.says("Well.")
    for read in ([1], 7, -0.5, True):
        told = json.dumps({"arguments": json.dumps(read)})
        chat(hermes, *called(read))
        assert told in hermes.prompt()
        old = {"role": "assistant", "function_call": {"name": "f", "arguments": read}}
        chat(hermes, old)
        assert told in hermes.prompt()
        item = {"type": "function_call", "call_id": "1", "name": "f", "arguments": read}
        post(hermes, RESPONSES, input=[USER, item])
        assert told in hermes.prompt()
        use = {"type": "tool_use", "id": "1", "name": "f", "input": read}
        turns = [USER, {"role": "assistant", "content": [use]}, USER]
        post(hermes, MESSAGES, max_tokens=9, messages=turns)
        assert told in hermes.prompt()


def test_what_proxies_hang_on_answers(hermes: Speaker) -> None:
    hermes.says("Well.")
    hung: dict[str, Any] = {"provider_specific_fields": {"a": 1}, "extra_content": {"b": "x"}}
    call, result = called("{}", **hung)
    chat(hermes, {**call, **hung, "thinking_blocks": [{"thinking": "Hm"}]}, result)
    chat(
        hermes, provider={"order": []}, cache_prompt=True, keep_alive="5m", usage={"include": True}
    )


def test_messages_without_content(hermes: Speaker) -> None:
    hermes.says("Well.")
    empty = {"role": "assistant", "content": None}
    chat(hermes, empty, {"role": "user", "content": None})
    post(hermes, RESPONSES, input=[USER, empty, {"role": "user", "content": None}])


@pytest.mark.parametrize("content", [{"a": 1}, 7, ["x"], [None], [{"type": "image"}], True])
def test_results_of_another_kind_are_refused(hermes: Speaker, content: Any) -> None:
    use = {"type": "tool_use", "id": "1", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": content}
    turns = [USER, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    body = {"model": hermes.model, "max_tokens": 9, "messages": turns}
    answer = hermes.server.http.post(MESSAGES, json=body)
    assert answer.status_code == 400 and "content[0].content" in answer.text


def test_a_history_that_began_at_a_service(hermes: Speaker) -> None:
    hermes.says("Well.")
    search = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
    said = {"type": "text", "text": "Found.", "citations": []}
    use = {"type": "tool_use", "id": "1", "name": "f", "input": {}}
    text = {"type": "document", "source": {"type": "text", "data": "page one"}, "title": "A"}
    result = {"type": "tool_result", "tool_use_id": "1", "content": [text]}
    blocks = {"role": "assistant", "content": [search, found, said, use]}
    turns = [USER, blocks, {"role": "user", "content": [result]}]
    budget = {"task_budget": {"type": "tokens", "total": 9}}
    post(hermes, MESSAGES, max_tokens=9, messages=turns, output_config=budget)
    assert "Found." in hermes.prompt() and "A\npage one" in hermes.prompt()
    assert "web_search" not in hermes.prompt()


NULLS = {"type": "object", "properties": None, "required": None, "$defs": None}


def test_schemas_with_nulls_from_languages_that_write_them(hermes: Speaker) -> None:
    hermes.says('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>')
    tool = {"type": "function", "function": {"name": "f", "parameters": NULLS}}
    done = chat(hermes, tools=[tool], tool_choice="required")
    assert done["choices"][0]["finish_reason"] == "tool_calls"
    flat = {"type": "function", "name": "f", "parameters": NULLS}
    post(hermes, RESPONSES, input="hi", tools=[flat], tool_choice="required")
    named = [{"name": "f", "input_schema": NULLS}]
    post(hermes, MESSAGES, max_tokens=99, messages=[USER], tools=named)


def test_null_as_a_value_stays_in_schemas(hermes: Speaker) -> None:
    hermes.says("null")
    schema = {"type": "object", "properties": {"a": {"const": None}}, "required": ["a"]}
    kind = {"type": "json_schema", "name": "x"}
    chat(hermes, response_format={**kind, "json_schema": {"name": "x", "schema": schema}})
    assert '"const":null' in hermes.asked()["grammar"]
    post(hermes, RESPONSES, input="hi", text={"format": {**kind, "schema": schema}})
    assert '"const":null' in hermes.asked()["grammar"]
    output = {"format": {"type": "json_schema", "schema": schema}}
    post(hermes, MESSAGES, max_tokens=9, messages=[USER], output_config=output)
    assert '"const":null' in hermes.asked()["grammar"]


def test_a_schema_that_allows_everything(hermes: Speaker) -> None:
    hermes.says("7")
    kind = {"type": "json_schema", "name": "x", "schema": True}
    chat(hermes, response_format=kind)
    post(hermes, RESPONSES, input="hi", text={"format": kind})
    post(hermes, MESSAGES, max_tokens=9, messages=[USER], output_format=kind)


def test_a_slash_too_many_is_told(hermes: Speaker) -> None:
    for path in ("/v1//chat/completions", f"{CHAT}/"):
        answer = hermes.server.http.post(path, json={})
        assert answer.status_code == 404 and "slash" in answer.json()["error"]["message"]
