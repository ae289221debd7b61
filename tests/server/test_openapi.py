"""The OpenAPI document: what is sent by it breaks nothing, and what is answered conforms to it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.schemas import APIOperation, BaseSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from engine.server.openapi import OPERATIONS
from tests.server.running import frames
from tests.server.speaking import Speaker

CHECKS: Any = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
SAID = (
    "<think>well</think>Here: ",
    'two <tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
    "plain text",
)
# What changes the server itself, and a stream without an end.
LEFT_OUT = {"/v1/engine/owner", "/v1/engine/shutdown", "/v1/engine/stats/stream"}
FUZZED = [key for key in OPERATIONS if key[1] not in LEFT_OUT]
MOST_CHARS, MOST_ITEMS = 300, 5


@pytest.fixture(scope="module")
def described(hermes: Speaker) -> dict[str, Any]:
    return dict(hermes.server.http.get("/openapi.json").json())


@pytest.fixture(scope="module")
def schema(described: dict[str, Any]) -> BaseSchema:
    return schemathesis.openapi.from_dict(described)


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.trust_env = False
        yield session


def test_the_document_is_openapi(described: dict[str, Any], schema: BaseSchema) -> None:
    assert described["openapi"].startswith("3.1")
    schema.validate()
    offered = {
        (method.upper(), path) for path, found in described["paths"].items() for method in found
    }
    assert offered == set(OPERATIONS)
    # Nothing in it names the program's own modules.
    assert "engine." not in json.dumps(described)


def test_the_document_wants_a_key_where_others_do(described: dict[str, Any]) -> None:
    for (method, path), operation in OPERATIONS.items():
        security = described["paths"][path][method.lower()].get("security")
        assert (security == [{"control-token": []}]) is operation.control


def operation_of(schema: BaseSchema, method: str, path: str) -> APIOperation:
    return schema[path][method]


# --- what real clients send -------------------------------------------------------------------

TURNS = [{"role": "user", "content": "hi"}]
TOOL = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
CHAT_TOOLS = {"tools": [{"type": "function", "function": TOOL}]}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
GOOD: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": TURNS}),
    (CHAT, {"messages": TURNS, "n": 3, "logprobs": True, "top_logprobs": 2, **CHAT_TOOLS}),
    (CHAT, {"messages": TURNS, "max_tokens": 2, "reasoning_effort": "none"}),
    (COMPLETIONS, {"prompt": ["a", "b"], "logprobs": 2}),
    (COMPLETIONS, {"prompt": [1, 2], "echo": True, "max_tokens": 0}),
    (RESPONSES, {"input": "hi", "tools": [{"type": "function", **TOOL}], "top_logprobs": 1}),
    (RESPONSES, {"input": "hi", "tools": [{"type": "custom", "name": "f"}], "user": "me"}),
    (RESPONSES, {"input": "hi", "include": ["reasoning.encrypted_content"], "temperature": 0}),
    (RESPONSES, {"input": "hi", "max_output_tokens": 1, "metadata": {"a": "b"}}),
    ("/v1/responses/input_tokens", {"input": "hi"}),
    (MESSAGES, {"messages": TURNS, "max_tokens": 99, "tools": [{"name": "f", "input_schema": {}}]}),
    (MESSAGES, {"messages": TURNS, "max_tokens": 99, "thinking": {"type": "enabled"}}),
    (MESSAGES, {"messages": TURNS, "max_tokens": 1, "context_management": {"edits": []}}),
    (MESSAGES, {"messages": TURNS, "max_tokens": 99, "stop_sequences": ["lain"]}),
    ("/v1/messages/count_tokens", {"messages": TURNS}),
    ("/v1/tokenize", {"content": "hi", "with_pieces": True, "return_token_strs": True}),
    ("/tokenize", {"messages": TURNS}),
    ("/v1/detokenize", {"tokens": [1, 2]}),
]


@pytest.mark.parametrize(("path", "body"), GOOD)
def test_good_answers_conform(
    hermes: Speaker, schema: BaseSchema, path: str, body: dict[str, Any]
) -> None:
    operation = operation_of(schema, "POST", path)
    hermes.says(*SAID)
    for _ in SAID:
        answer = hermes.server.http.post(path, json={"model": hermes.model, **body})
        assert answer.status_code == 200, answer.text
        operation.validate_response(answer)


def test_good_answers_to_get_conform(hermes: Speaker, schema: BaseSchema) -> None:
    hermes.says(*SAID)
    http = hermes.server.http
    kept = http.post(RESPONSES, json={"model": hermes.model, "input": "hi"}).json()["id"]
    for method, path in FUZZED:
        if method != "POST" and path != "/openapi.json":
            answer = http.request(method, path.format(id=kept, model=hermes.model))
            if method == "DELETE":
                kept = http.post(RESPONSES, json={"model": hermes.model, "input": "hi"}).json()[
                    "id"
                ]
            assert answer.status_code == 200, (path, answer.text)
            operation_of(schema, method, path).validate_response(answer)


def test_streams_are_what_the_document_says(hermes: Speaker, schema: BaseSchema) -> None:
    hermes.says(*SAID)
    for path, body in GOOD:
        if OPERATIONS["POST", path].streams:
            sent = {"model": hermes.model, "stream": True, **body}
            with hermes.server.http.stream("POST", path, json=sent) as answer:
                assert answer.headers["content-type"].startswith("text/event-stream")
                assert list(frames(answer))


# --- what nobody sends ------------------------------------------------------------------------


def bounded(value: Any) -> Any:
    """The same, as long as what a test has the time for."""
    if isinstance(value, str):
        return value[:MOST_CHARS]
    if isinstance(value, list):
        return [bounded(item) for item in value[:MOST_ITEMS]]
    if isinstance(value, dict):
        return {key[:MOST_CHARS]: bounded(item) for key, item in value.items()}
    return value


def prepared(case: Case, required: set[str], model: str, chance: int) -> None:
    """Of three requests one is left as it is; the others would nearly all end at the first of many
    odd fields, or at the name of the model: they get the right one, and every other at most one
    field that is not required."""
    if isinstance(case.body, dict | list):
        case.body = bounded(case.body)
    if chance % 3 == 0:
        return
    if isinstance(case.body, dict):
        if "model" in case.body:
            case.body["model"] = model
        optional = sorted(case.body.keys() - required)
        if chance % 3 == 1 and optional:
            kept = {*required, optional[chance % len(optional)]}
            case.body = {name: value for name, value in case.body.items() if name in kept}
    if "model" in case.path_parameters:
        case.path_parameters["model"] = model


def required_of(described: dict[str, Any], method: str, path: str) -> set[str]:
    body = described["paths"][path][method.lower()].get("requestBody")
    if body is None:
        return set()
    name = body["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[1]
    return {*described["components"]["schemas"][name].get("required", ()), "content", "prompt"}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("count", [150, pytest.param(5000, marks=pytest.mark.full)])
def test_no_request_breaks_the_server(
    hermes: Speaker,
    described: dict[str, Any],
    schema: BaseSchema,
    session: requests.Session,
    count: int,
) -> None:
    hermes.says(*SAID)
    server = hermes.server
    seen: Counter[tuple[str, int]] = Counter()
    strategies = [
        operation_of(schema, *key).as_strategy(generation_mode=mode)
        for key in FUZZED
        for mode in GenerationMode
        # Bodies are where things go wrong.
        for _ in range(4 if OPERATIONS[key].body is not None else 1)
    ]

    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(st.one_of(strategies), st.integers(0, 99))
    def sends(case: Case, chance: int) -> None:
        required = required_of(described, case.method, case.operation.path)
        prepared(case, required, hermes.model, chance)
        answer = case.call(base_url=server.url, session=session, timeout=60)
        seen[case.operation.path, answer.status_code] += 1
        case.validate_response(answer, checks=CHECKS)

    sends()
    assert {200, 400, 404} <= {status for _, status in seen}, seen
    if count > 1000:  # none of the endpoints refuses whatever comes
        answered = {path for path, status in seen if status == 200}
        assert {path for _, path in FUZZED if "{id}" not in path} <= answered, seen
    assert server.stats()["runtime_restarts"] == 0
    assert "Traceback" not in server.logged()
