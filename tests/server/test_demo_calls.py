"""Calls that the demo model must make, through every protocol: all are whole and valid."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.server.running import Server, frames, running

PROMPTS, FULL_PROMPTS = 12, 200
AT_ONCE = 8
SCHEMAS: dict[str, dict[str, Any]] = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "minLength": 1, "maxLength": 30},
            "days": {"type": "integer", "minimum": 1},
            "units": {"enum": ["celsius", "fahrenheit"]},
        },
        "required": ["city", "days"],
    },
    "note": {
        "type": "object",
        "properties": {
            "title": {"type": "string", "maxLength": 20},
            "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 3},
            "pinned": {"type": ["boolean", "null"]},
            "place": {
                "anyOf": [
                    {"type": "object", "properties": {"row": {"type": "integer"}}},
                    {"type": "null"},
                ]
            },
        },
        "required": ["title", "tags", "pinned", "place"],
        "$defs": {"tag": {"type": "string", "pattern": "^[a-z]{2,8}$"}},
    },
    "now": {"type": "object", "properties": {}},
}
SUBJECTS = ("the weather", "a river", "numbers", "music", "my garden", "code", "a long trip")
ASKED = ("Tell me about", "What is", "Write down", "Please plan", "How do you like")
Call = tuple[str, Any]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running("demo", tmp_path_factory.mktemp("home"), "--device", "cpu") as started:
        yield started


def question(number: int) -> dict[str, Any]:
    asked = f"{ASKED[number % 5]} {SUBJECTS[number % 7]}, {number}."
    return {"role": "user", "content": asked}


def named(number: int) -> str | None:
    """The tool that must be called; None: any of them."""
    return [*SCHEMAS, None, None][number % 5]


def chat(server: Server, number: int) -> list[Call]:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": schema}}
        for name, schema in SCHEMAS.items()
    ]
    only = named(number)
    choice = {"type": "function", "function": {"name": only}} if only else "required"
    body = {"messages": [question(number)], "tools": tools, "tool_choice": choice, "seed": number}
    path = "/v1/chat/completions"
    if number % 2:
        (answer,) = post(server, path, body)["choices"]
        called = answer["message"]["tool_calls"]
        finish = answer["finish_reason"]
    else:
        called, finish = [], ""
        for chunk in streamed(server, path, body):
            (choice_,) = chunk["choices"]
            finish = choice_["finish_reason"] or finish
            for piece in choice_["delta"].get("tool_calls", []):
                if "id" in piece:
                    called.append(piece)
                else:
                    called[piece["index"]]["function"]["arguments"] += piece["function"][
                        "arguments"
                    ]
    assert finish == "tool_calls", number
    return [
        (each["function"]["name"], json.loads(each["function"]["arguments"])) for each in called
    ]


def responses(server: Server, number: int) -> list[Call]:
    tools = [
        {"type": "function", "name": name, "parameters": schema, "strict": number % 2 == 0}
        for name, schema in SCHEMAS.items()
    ]
    only = named(number)
    choice = {"type": "function", "name": only} if only else "required"
    body = {"input": [question(number)], "tools": tools, "tool_choice": choice, "seed": number}
    answer = post(server, "/v1/responses", body)
    assert answer["status"] == "completed", number
    return [(each["name"], json.loads(each["arguments"])) for each in answer["output"]]


def messages(server: Server, number: int) -> list[Call]:
    tools = [{"name": name, "input_schema": schema} for name, schema in SCHEMAS.items()]
    only = named(number)
    choice = {"type": "tool", "name": only} if only else {"type": "any"}
    choice = {**choice, "disable_parallel_tool_use": number % 2 == 0}
    body = {"messages": [question(number)], "tools": tools, "tool_choice": choice}
    answer = post(server, "/v1/messages", {**body, "max_tokens": 2000})
    assert answer["stop_reason"] == "tool_use", number
    assert len(answer["content"]) == 1 or number % 2
    return [(each["name"], each["input"]) for each in answer["content"]]


def post(server: Server, path: str, body: dict[str, Any]) -> Any:
    answer = server.http.post(path, json={"model": "demo", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def streamed(server: Server, path: str, body: dict[str, Any]) -> Iterator[Any]:
    fields = {"model": "demo", "stream": True, **body}
    with server.http.stream("POST", path, json=fields) as answer:
        assert answer.status_code == 200
        yield from (frame for frame in frames(answer) if frame != "[DONE]")


FULL = pytest.param(FULL_PROMPTS, marks=[pytest.mark.full, pytest.mark.timeout(1800)])


@pytest.mark.parametrize("prompts", [PROMPTS, FULL])
def test_every_call_is_whole_and_valid(demo: Server, prompts: int, record_property: Any) -> None:
    def calls(number: int) -> list[Call]:
        protocol = (chat, chat, responses, messages)[number % 4]
        return protocol(demo, number)

    demo.http.timeout = 600
    with ThreadPoolExecutor(AT_ONCE) as threads:
        answers = list(threads.map(calls, range(prompts)))
    for number, made in enumerate(answers):
        assert made, number
        for name, arguments in made:
            assert name == named(number) or named(number) is None
            Draft202012Validator(SCHEMAS[name]).validate(arguments)
    record_property("answers", len(answers))
    record_property("calls", sum(map(len, answers)))
    print(f"{len(answers)} answers with {sum(map(len, answers))} calls")
