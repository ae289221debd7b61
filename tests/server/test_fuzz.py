"""Whatever a body holds, the answer is 200 or a refusal in shape: never a mistake of the server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.server.anthropic_requests import MessagesRequest
from engine.server.completions_requests import CompletionRequest
from engine.server.openai_requests import ChatRequest
from engine.server.responses_requests import ResponsesRequest
from engine.server.tokens import TokenizeRequest
from tests.properties import examples
from tests.server.running import Server

SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "x", "auto", "none", "text", "user", "<|im_end|>", "\u0000", "{}"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["type", "text", "role", "content", "name", "function", "5", "id"]),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=5,
)
CALLS = st.fixed_dictionaries(
    {
        "id": st.text(max_size=3),
        "function": st.fixed_dictionaries(
            {"name": st.text(max_size=3), "arguments": st.sampled_from(["", "{}", "[1]", "{"])}
        ),
    }
)
TEXTS = st.text(max_size=9)
TEXT_PARTS = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}), max_size=2)
CONTENTS = st.one_of(TEXTS, TEXTS, TEXT_PARTS, VALUES)
OPENAI_TURNS = st.one_of(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["system", "developer", "user", "tool", "function"]),
            "content": CONTENTS,
        },
        optional={"name": TEXTS},
    ),
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": CONTENTS},
        optional={
            "tool_calls": st.lists(CALLS, max_size=2),
            "refusal": SCALARS,
            "reasoning_content": TEXTS,
        },
    ),
)
BLOCKS = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}),
    st.fixed_dictionaries({"type": st.just("thinking"), "thinking": TEXTS}),
    st.fixed_dictionaries(
        {"type": st.just("tool_use"), "id": TEXTS, "name": TEXTS, "input": VALUES}
    ),
    st.fixed_dictionaries(
        {"type": st.just("tool_result"), "tool_use_id": TEXTS},
        optional={"content": CONTENTS, "is_error": SCALARS},
    ),
)
ANTHROPIC_TURNS = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant"]),
        "content": st.one_of(TEXTS, st.lists(BLOCKS, max_size=3), VALUES),
    }
)
PROMPTS = st.one_of(TEXTS, st.lists(st.integers(0, 300), max_size=4), VALUES)

ITEMS = st.one_of(
    OPENAI_TURNS,
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["function_call", "custom_tool_call", "reasoning", "message"]),
            "call_id": TEXTS,
            "name": TEXTS,
        },
        optional={
            "arguments": st.sampled_from(["", "{}", "[1]", "{"]),
            "input": SCALARS,
            "summary": VALUES,
            "content": CONTENTS,
            "encrypted_content": st.sampled_from(["headrace:eA==", "headrace:?", "x"]),
        },
    ),
    st.fixed_dictionaries(
        {"type": st.just("function_call_output"), "call_id": TEXTS, "output": CONTENTS}
    ),
)
TOOLS = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["function", "custom", "namespace", "web_search", "x"])},
        optional={
            "name": st.sampled_from(["f", "g", ""]),
            "function": VALUES,
            "parameters": VALUES,
            "input_schema": VALUES,
            "tools": VALUES,
            "format": VALUES,
        },
    ),
    max_size=2,
)

ENDPOINTS: dict[str, tuple[Any, str, st.SearchStrategy[Any]]] = {
    "/v1/chat/completions": (ChatRequest, "messages", st.lists(OPENAI_TURNS, max_size=3)),
    "/v1/completions": (CompletionRequest, "prompt", PROMPTS),
    "/v1/messages": (MessagesRequest, "messages", st.lists(ANTHROPIC_TURNS, max_size=3)),
    "/v1/responses": (ResponsesRequest, "input", st.lists(ITEMS, max_size=3)),
    "/v1/tokenize": (TokenizeRequest, "messages", st.lists(OPENAI_TURNS, max_size=3)),
}


@pytest.mark.parametrize("path", ENDPOINTS)
def test_no_body_breaks_the_server(server: Server, path: str) -> None:
    record, main, values = ENDPOINTS[path]
    fixed = {"model", "max_tokens", "max_output_tokens", "ignore_eos", main}
    fields = sorted({*record.__struct_fields__} - fixed)
    limit = {"/v1/responses": "max_output_tokens", "/v1/tokenize": "model"}.get(path, "max_tokens")
    seen: set[int] = set()

    @settings(max_examples=examples(50), suppress_health_check=list(HealthCheck), database=None)
    @given(
        values,
        st.one_of(
            st.dictionaries(st.sampled_from(fields), VALUES, max_size=1),
            st.fixed_dictionaries({"tools": TOOLS}),
        ),
    )
    def sends(value: Any, extra: dict[str, Any]) -> None:
        body = {**extra, main: value, limit: 2, "model": server.model}
        answer = server.http.post(path, content=json.dumps(body))
        assert answer.status_code in (200, 400), (answer.text, body)
        seen.add(answer.status_code)
        if answer.status_code == 400:
            assert answer.json()["error"]["message"]

    sends()
    assert seen == {200, 400}
    assert server.stats()["runtime_restarts"] == 0
