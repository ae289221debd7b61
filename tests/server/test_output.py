"""What clients see of tokens, arguments that are cut, choices side by side, what is stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from engine.errors import RuntimeDied
from engine.server.call_arguments import MAX_DEPTH, arguments_object
from engine.server.choices import merged
from engine.server.generation import Ended, GenerationEvent, Started
from engine.server.responses_store import (
    PreviousResponseNotFound,
    ResponseNotFound,
    ResponseStore,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        ("null", {}),
        ("[1]", {"arguments": "[1]"}),
        ('"Oslo"', {"arguments": '"Oslo"'}),
        ('{"city": Oslo}', {"arguments": '{"city": Oslo}'}),
        ("{'city': 'Oslo'}", {"arguments": "{'city': 'Oslo'}"}),
        ('{"a": NaN}', {"arguments": '{"a": NaN}'}),
        (r'{"a": "\ud800"}', {"arguments": r'{"a": "\ud800"}'}),
        (r'{"b": "x\"}", "a": "\ud800"}', {"b": 'x"}'}),
        ('{"a": 1,}', {"a": 1}),
        ('{"a": 1, "b": Oslo}', {"a": 1}),
        ('{"a": 1, "b": [NaN, 2]}', {"a": 1}),
        ('{"a": 1, "b": [{{', {"a": 1}),
        ('{"a": 1}{"b": 2}', {"a": 1}),
        ('{"a": [' + "{}," * 99 + "{}]}", {"a": [{}] * 100}),
        ('{"a": "Os', {"a": "Os"}),
        ('{"a": "Os\\', {}),
        ('{"a": 1, "b": "x\\', {"a": 1}),
        ('{"a": 1, "b', {"a": 1}),
        ('{"a": 1, "b":', {"a": 1}),
        ('{"a": 1, "b": tr', {"a": 1}),
        ('{"a": [1, {"b": "}, ', {"a": [1, {"b": "}, "}]}),
        ('{"a": [1, {"b": 2}, 3', {"a": [1, {"b": 2}, 3]}),
        ('{"a": {"b": {"c', {"a": {"b": {}}}),
        ("{" * 5000, {}),
    ],
)
def test_arguments_that_are_cut(text: str, expected: dict[str, Any]) -> None:
    assert arguments_object(text) == expected


@pytest.mark.parametrize(
    "part", ["[", "{", '{"a":', '{"a":[],', ",", '"', r"\"", "[,", "[{},", "]", "{}"]
)
def test_arguments_of_any_length(part: str) -> None:
    """2 MB, at a cost that grows with the length only."""
    text = '{"a": 1, "b": [' + part * (2_000_000 // len(part))
    for ended in (text, text + "]}"):
        assert arguments_object(ended)["a"] == 1


@pytest.mark.parametrize("depth", [MAX_DEPTH - 1, MAX_DEPTH, 900, 3000])
def test_arguments_that_nest(depth: int) -> None:
    text = '{"a": 1, "b": ' + "[" * depth + "]" * depth + "}"
    found = arguments_object(text)
    assert found["a"] == 1
    levels, inner = 0, found["b"]
    while inner:
        levels, inner = levels + 1, inner[0]
    assert levels == min(depth, MAX_DEPTH - 1) - 1


class Source:
    """A generation that says so much and then waits, fails or ends."""

    def __init__(self, number: int, then: str) -> None:
        self.number = number
        self.then = then
        self.closed = False

    async def events(self) -> AsyncGenerator[GenerationEvent, None]:
        try:
            yield Started(self.number, 0)
            if self.then == "waits":
                await asyncio.Event().wait()
            if self.then == "fails":
                raise RuntimeDied("gone")
            yield Ended("stop", None, self.number, 1)
        finally:
            self.closed = True


@pytest.mark.parametrize("count", [1, 3])
def test_generations_side_by_side(count: int) -> None:
    async def run() -> None:
        sources = [Source(number, "ends") for number in range(count)]
        seen: dict[int, list[Any]] = {}
        async for number, event in merged([source.events() for source in sources]):
            seen.setdefault(number, []).append(event)
        assert {number: type(events[-1]) for number, events in seen.items()} == dict.fromkeys(
            range(count), Ended
        )
        assert all(events[0] == Started(number, 0) for number, events in seen.items())

    asyncio.run(run())


def test_one_that_fails_ends_all_and_one_that_is_closed_closes_all() -> None:
    async def run(then: str) -> None:
        sources = [Source(0, "waits"), Source(1, then)]
        events = merged([source.events() for source in sources])
        if then == "fails":
            with pytest.raises(RuntimeDied):
                async for _ in events:
                    pass
        else:
            async with aclosing(events):
                await anext(events)
                await anext(events)
        assert all(source.closed for source in sources)

    for then in ("fails", "waits"):
        asyncio.run(run(then))


def response(number: int, text: str = "x") -> dict[str, Any]:
    item = {"id": f"msg_{number}", "type": "message", "content": text}
    return {"id": f"resp_{number}", "output": [item]}


def test_the_oldest_responses_are_forgotten() -> None:
    store = ResponseStore(max_responses=2)
    for number in range(3):
        store.put(response(number), [], [])
    with pytest.raises(ResponseNotFound):
        store.get("resp_0")
    with pytest.raises(PreviousResponseNotFound, match="resp_0"):
        store.previous("resp_0")
    assert store.get("resp_2").response["output"][0] == store.item("msg_2")
    assert store.item("msg_0") is None


def test_large_responses_are_forgotten_sooner() -> None:
    store = ResponseStore(max_bytes=10_000)
    store.put(response(0, "x" * 6000), [], [])
    store.put(response(1, "x" * 6000), [], [{"role": "user", "content": "y"}])
    with pytest.raises(ResponseNotFound):
        store.get("resp_0")
    store.put(response(2, "x" * 20_000), [], [])
    for number in range(3):
        with pytest.raises(ResponseNotFound):
            store.get(f"resp_{number}")
    store.put(response(3, "x" * 9000), [], [])
    assert store.get("resp_3")
    store.delete("resp_3")
    store.put(response(4, "x" * 9000), [], [])
    assert store.get("resp_4"), "what is deleted weighs nothing"
