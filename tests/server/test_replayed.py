"""What agents send back: calls, results and schemas that are not as they should be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.server.bodies import convert, parse_json
from engine.server.call_arguments import MAX_DEPTH
from engine.server.openai_messages import conversation
from engine.server.openai_requests import ChatRequest
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


def test_thinking_that_comes_back_as_a_part_is_reasoning(hermes: Speaker) -> None:
    """As proxies and Mistral's clients send it."""
    hermes.says("Well.")
    text = {"type": "text", "text": "Seven."}
    for thinking in (
        {"type": "thinking", "thinking": "Hm.", "signature": "x"},
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}], "closed": True},
    ):
        said = {"role": "assistant", "content": [thinking, text]}
        chat(hermes, said, USER)
        assert "<think>Hm.</think>\nSeven." in hermes.prompt()
        chat(hermes, {**said, "reasoning_content": "Oh."}, USER)
        assert "<think>Oh.</think>\nSeven." in hermes.prompt()
        post(hermes, RESPONSES, input=[USER, said, USER])
        assert "<think>Hm.</think>\nSeven." in hermes.prompt()
    hidden = {"type": "redacted_thinking", "data": "x"}
    chat(hermes, {"role": "assistant", "content": [hidden, text]}, USER)
    assert "<think>" not in hermes.prompt()


@pytest.mark.parametrize("thinking", [7, ["x"], {"a": 1}, [{"type": "image"}]])
def test_thinking_of_another_kind_is_refused(hermes: Speaker, thinking: Any) -> None:
    said = {"role": "assistant", "content": [{"type": "thinking", "thinking": thinking}]}
    for path, field in ((CHAT, "messages"), (RESPONSES, "input")):
        body = {"model": hermes.model, field: [USER, said]}
        answer = hermes.server.http.post(path, json=body)
        assert answer.status_code == 400
        param = answer.json()["error"]["param"]
        assert param.startswith(f"{field}[1].content[0].thinking"), param
    of_user = {"role": "user", "content": [{"type": "thinking", "thinking": "Hm."}]}
    body = {"model": hermes.model, "messages": [of_user]}
    assert hermes.server.http.post(CHAT, json=body).status_code == 400


def output_of(call: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call, "output": "x"}


def test_answers_to_calls_that_nobody_made_are_refused(hermes: Speaker) -> None:
    """By every protocol."""
    other = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    result = {"type": "tool_result", "tool_use_id": "zz", "content": "x"}
    use = {"type": "tool_use", "id": "zz", "name": "f", "input": {}}
    call, result_of_call = called("{}")
    second, _ = called("{}", id="2")
    bodies: list[tuple[str, dict[str, Any], str]] = [
        (RESPONSES, {"input": [USER, output_of("zz")]}, "input[1].call_id"),
        (RESPONSES, {"input": [USER, output_of("zz"), other]}, "input[1].call_id"),
        (f"{RESPONSES}/input_tokens", {"input": [USER, output_of("zz")]}, "input[1].call_id"),
    ]
    turns: list[Any]
    for turns in (
        [{"role": "tool", "content": "x"}],
        [{"role": "tool", "tool_call_id": "zz", "content": "x"}],
        [{"role": "tool", "tool_call_id": "1", "content": "x"}, call],
        [call, second, {"role": "tool", "content": "x"}],
        [call, second, {"role": "function", "name": "f", "content": "x"}],
        [call, result_of_call, {"role": "tool", "content": "x"}],
        [{"role": "function", "name": "f", "content": "x"}],
    ):
        bodies += [(path, {"messages": [USER, *turns]}, "messages") for path in (CHAT, "/tokenize")]
    for turns in (
        [{"role": "user", "content": [result]}],
        [{"role": "user", "content": [result]}, {"role": "assistant", "content": [use]}, USER],
    ):
        for path in (MESSAGES, f"{MESSAGES}/count_tokens"):
            limit = {"max_tokens": 9} if path == MESSAGES else {}
            bodies.append((path, {"messages": [USER, *turns], **limit}, ""))
    for path, fields, param in bodies:
        answer = hermes.server.http.post(path, json={"model": hermes.model, **fields})
        assert answer.status_code == 400, (path, fields, answer.text)
        error = answer.json()["error"]
        assert "call" in error["message"] and error.get("param", "") == param


def test_answers_to_calls_of_a_history_that_is_kept_are_taken(hermes: Speaker) -> None:
    hermes.says('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>', *["Well."] * 4)
    tools = [{"type": "function", "name": "f", "parameters": {}}]
    first = post(hermes, RESPONSES, input="hi", tools=tools)
    (call,) = first["output"]
    output = output_of(call["call_id"])
    second = post(hermes, RESPONSES, input=[output], previous_response_id=first["id"])
    post(hermes, RESPONSES, input="hi", previous_response_id=second["id"])
    post(hermes, RESPONSES, input=[{"type": "item_reference", "id": call["id"]}, output])
    # The rest of a history that was cut before this call.
    post(hermes, RESPONSES, input=[USER, call, output])
    answer = hermes.server.http.post(
        RESPONSES,
        json={
            "model": hermes.model,
            "input": [output_of("zz")],
            "previous_response_id": first["id"],
        },
    )
    assert answer.json()["error"]["param"] == "input[0].call_id"


def test_an_output_may_stand_before_its_call(hermes: Speaker) -> None:
    """Templates get it behind the call."""
    hermes.says("Well.")
    made: list[Any] = [
        {"type": "function_call", "call_id": id_, "name": id_, "arguments": "{}"}
        for id_ in ("one", "two")
    ]
    outputs = [{**output_of(id_), "output": f"of {id_}"} for id_ in ("one", "two")]
    for items in (
        [outputs[0], made[0], made[1], outputs[1]],
        [outputs[0], outputs[1], *made],
        [outputs[1], USER, made[0], outputs[0], made[1]],
    ):
        post(hermes, RESPONSES, input=[USER, *items, USER])
        prompt = hermes.prompt()
        for id_ in ("one", "two"):
            assert 0 < prompt.index(f'"name": "{id_}"') < prompt.index(f"of {id_}")
            assert prompt.count(f"of {id_}") == 1
    count = {"model": hermes.model, "input": [USER, outputs[0], made[0]]}
    assert hermes.server.http.post(f"{RESPONSES}/input_tokens", json=count).status_code == 200


def test_a_history_without_ids(hermes: Speaker) -> None:
    hermes.says("Well.")
    call, _ = called("{}")
    del call["tool_calls"][0]["id"]
    chat(hermes, call, {"role": "tool", "content": "seven"})
    old = {"role": "assistant", "content": None, "function_call": {"name": "f"}}
    chat(hermes, old, {"role": "function", "name": "f", "content": "seven"})


def wanting(*calls: tuple[str, str]) -> dict[str, Any]:
    """An assistant's turn with calls: their ids and names."""
    made = [
        {"id": id_, "type": "function", "function": {"name": name, "arguments": "{}"}}
        for id_, name in calls
    ]
    return {"role": "assistant", "content": None, "tool_calls": made}


@pytest.mark.parametrize(
    ("turns", "ids"),
    [
        ([wanting(("c1", "f")), {"role": "tool", "name": "f"}], ["c1"]),
        ([wanting(("c1", "f")), {"role": "tool", "tool_call_id": None}], ["c1"]),
        ([wanting(("c1", "f")), {"role": "tool", "tool_call_id": ""}], ["c1"]),
        ([wanting(("c1", "f")), {"role": "tool", "name": "label"}], ["c1"]),
        ([wanting(("c1", "f")), {"role": "function", "name": "f"}], ["c1"]),
        (
            [
                wanting(("c1", "f"), ("c2", "g")),
                {"role": "tool", "name": "g"},
                {"role": "tool"},
            ],
            ["c2", "c1"],
        ),
        (
            [
                wanting(("c1", "f"), ("c2", "f")),
                {"role": "tool", "tool_call_id": "c2"},
                {"role": "tool"},
            ],
            ["c2", "c1"],
        ),
        # The first was given up; the second is in two turns.
        (
            [
                wanting(("c1", "f")),
                USER,
                wanting(("c2", "f")),
                wanting(("c3", "g")),
                {"role": "tool", "name": "f"},
                {"role": "tool"},
            ],
            ["c2", "c3"],
        ),
        ([wanting(("", "f"), ("", "f")), {"role": "tool"}, {"role": "tool"}], [None, None]),
    ],
)
def test_an_answer_without_an_id_is_to_the_open_call(turns: list[Any], ids: list[Any]) -> None:
    sent = [USER, *({"content": "x", **turn} for turn in turns)]
    body = json.dumps({"model": "m", "messages": sent}).encode()
    asked = convert(parse_json(body), ChatRequest, null_is_absent=("messages",))
    read = conversation(asked.messages)
    assert [turn.get("tool_call_id") for turn in read if turn["role"] == "tool"] == ids


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
    for method, path in (
        ("POST", "/v1//chat/completions"),
        ("POST", f"{CHAT}/"),
        ("GET", "/v1/models/"),
        ("GET", "/health/"),
    ):
        answer = hermes.server.http.request(method, path)
        assert answer.status_code == 404 and "slash" in answer.json()["error"]["message"]
