"""Calls that the demo model must make, through every protocol: all are whole and valid."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Asking:
    """One request, but for its protocol."""

    number: int
    stream: bool
    strict: bool
    several: bool
    """Whether calls may be parallel."""

    @property
    def turns(self) -> list[dict[str, Any]]:
        asked = f"{ASKED[self.number % 5]} {SUBJECTS[self.number % 7]}, {self.number}."
        return [{"role": "user", "content": asked}]

    @property
    def named(self) -> str | None:
        """The tool that must be called; None: any of them."""
        return [*SCHEMAS, None, None][self.number % 5]

    def tools(self, schema_as: str) -> list[dict[str, Any]]:
        return [
            {"name": name, schema_as: schema, "strict": self.strict}
            for name, schema in SCHEMAS.items()
        ]


def chat(server: Server, asking: Asking) -> list[Call]:
    tools = [{"type": "function", "function": tool} for tool in asking.tools("parameters")]
    named = {"type": "function", "function": {"name": asking.named}}
    body = {
        "messages": asking.turns,
        "tools": tools,
        "tool_choice": named if asking.named else "required",
        "parallel_tool_calls": asking.several,
        "seed": asking.number,
    }
    path = "/v1/chat/completions"
    called: list[Any] = []
    finish = ""
    if asking.stream:
        for chunk in streamed(server, path, body):
            (choice,) = chunk["choices"]
            finish = choice["finish_reason"] or finish
            for piece in choice["delta"].get("tool_calls", []):
                if "id" in piece:
                    called.append(piece["function"])
                else:
                    called[piece["index"]]["arguments"] += piece["function"]["arguments"]
    else:
        (answer,) = post(server, path, body)["choices"]
        called = [each["function"] for each in answer["message"]["tool_calls"]]
        finish = answer["finish_reason"]
    assert finish == "tool_calls", asking
    return [(each["name"], json.loads(each["arguments"])) for each in called]


def responses(server: Server, asking: Asking) -> list[Call]:
    body = {
        "input": asking.turns,
        "tools": [{"type": "function", **tool} for tool in asking.tools("parameters")],
        "tool_choice": {"type": "function", "name": asking.named} if asking.named else "required",
        "parallel_tool_calls": asking.several,
        "seed": asking.number,
    }
    if asking.stream:
        *events, last = streamed(server, "/v1/responses", body)
        parts = [each for each in events if each["type"].endswith("arguments.delta")]
        answer = last["response"]
        for at, item in enumerate(answer["output"]):
            told = "".join(each["delta"] for each in parts if each["output_index"] == at)
            assert told == item["arguments"], asking
    else:
        answer = post(server, "/v1/responses", body)
    assert answer["status"] == "completed", asking
    return [(each["name"], json.loads(each["arguments"])) for each in answer["output"]]


def messages(server: Server, asking: Asking) -> list[Call]:
    choice = {"type": "tool", "name": asking.named} if asking.named else {"type": "any"}
    body = {
        "messages": asking.turns,
        "tools": asking.tools("input_schema"),
        "tool_choice": {**choice, "disable_parallel_tool_use": not asking.several},
        "max_tokens": 2000,
    }
    if not asking.stream:
        answer = post(server, "/v1/messages", body)
        assert answer["stop_reason"] == "tool_use", asking
        return [(each["name"], each["input"]) for each in answer["content"]]
    named: list[str] = []
    texts: list[str] = []
    reason = ""
    for event in streamed(server, "/v1/messages", body):
        match event["type"]:
            case "content_block_start":
                named.append(event["content_block"]["name"])
                texts.append("")
            case "content_block_delta":
                texts[event["index"]] += event["delta"]["partial_json"]
            case "message_delta":
                reason = event["delta"]["stop_reason"]
    assert reason == "tool_use", asking
    return list(zip(named, map(json.loads, texts), strict=True))


def post(server: Server, path: str, body: dict[str, Any]) -> Any:
    answer = server.http.post(path, json={"model": "demo", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def streamed(server: Server, path: str, body: dict[str, Any]) -> Iterator[Any]:
    fields = {"model": "demo", "stream": True, **body}
    with server.http.stream("POST", path, json=fields) as answer:
        assert answer.status_code == 200
        yield from (frame for frame in frames(answer) if frame != "[DONE]")


PROTOCOLS: tuple[Callable[[Server, Asking], list[Call]], ...] = (chat, responses, messages)
WAYS = sorted(itertools.product((False, True), repeat=3), key=lambda way: sum(way) % 2)
KINDS = [(protocol, *way) for way in WAYS for protocol in PROTOCOLS]
"""Every protocol with every way to ask; a prompt's number runs through them and the tools. The
first half has every pair of their values."""
FULL = pytest.param(FULL_PROMPTS, marks=[pytest.mark.full, pytest.mark.timeout(1800)])


@pytest.mark.parametrize("prompts", [PROMPTS, FULL])
def test_every_call_is_whole_and_valid(demo: Server, prompts: int, record_property: Any) -> None:
    def calls(number: int) -> tuple[Any, Asking, list[Call]]:
        protocol, stream, strict, several = KINDS[number % len(KINDS)]
        asking = Asking(number, stream, strict, several)
        return protocol, asking, protocol(demo, asking)

    demo.http.timeout = 600
    with ThreadPoolExecutor(AT_ONCE) as threads:
        answers = list(threads.map(calls, range(prompts)))
    for protocol, asking, made in answers:
        assert made, asking
        if not asking.several or (asking.named and protocol is not messages):
            assert len(made) == 1, asking
        for name, arguments in made:
            assert asking.named in (name, None)
            Draft202012Validator(SCHEMAS[name]).validate(arguments)
    assert any(len(made) > 1 for _, _, made in answers)
    count = sum(len(made) for _, _, made in answers)
    record_property("answers", len(answers))
    record_property("calls", count)
    print(f"{len(answers)} answers with {count} calls")
