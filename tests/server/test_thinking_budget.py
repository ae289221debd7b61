"""A budget of thinking: the answer comes when it is used up, in every protocol."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from engine.chat.model_files import locate
from engine.chat.text_model import TextModel, load_text_model
from tests.server.running import Server, running
from tests.server.speaking import Speaker

ASK: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
BUDGET = 7
PING = {"name": "ping", "parameters": {"type": "object", "properties": {}}}
TOOL = {"type": "function", "function": PING}


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model, told to think, which it was never taught to end."""
    folder = tmp_path_factory.mktemp("models") / "thinker"
    shutil.copytree(locate("demo").path, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    told = config["chat_template"].replace("assistant\n'", "assistant\n<think>'")
    assert told != config["chat_template"]
    config["chat_template"] = told
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def text(thinker: Path) -> TextModel:
    return load_text_model(locate(str(thinker)))


@pytest.fixture(scope="module")
def server(thinker: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(thinker, tmp_path_factory.mktemp("home"), "--device", "cpu") as started:
        yield started


def openai_client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", http_client=server.http)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "asked",
    [
        {"thinking_budget": BUDGET},
        {"thinking": {"type": "enabled", "budget_tokens": BUDGET}},
        {"thinking_budget": BUDGET, "temperature": 1.0, "seed": 3},
    ],
)
def test_openai_clients(server: Server, text: TextModel, stream: bool, asked: Any) -> None:
    body = {"temperature": 0, **asked}
    client = openai_client(server)
    made: Any = client.chat.completions.create(
        model="thinker", messages=ASK, max_tokens=40, stream=stream, extra_body=body
    )
    if stream:
        deltas = [chunk.choices[0].delta for chunk in made]
        thoughts = "".join(getattr(delta, "reasoning_content", "") or "" for delta in deltas)
        content = "".join(delta.content or "" for delta in deltas)
    else:
        thoughts = made.choices[0].message.reasoning_content
        content = made.choices[0].message.content
    assert thoughts and content.strip() and "</think>" not in thoughts + content
    # Its text is that of so many tokens, but for white space around it.
    assert BUDGET - 2 <= len(text.tokenizer.encode(thoughts)) <= BUDGET + 2


def test_without_a_budget_it_thinks_on(server: Server) -> None:
    client = openai_client(server)
    made: Any = client.chat.completions.create(model="thinker", messages=ASK, max_tokens=40)
    assert made.choices[0].message.reasoning_content and not made.choices[0].message.content


@pytest.mark.parametrize("stream", [False, True])
def test_anthropic_clients(server: Server, text: TextModel, stream: bool) -> None:
    client = anthropic.Anthropic(base_url=server.url, api_key="any", http_client=server.http)
    asked: Any = {
        "model": "thinker",
        "messages": ASK,
        "max_tokens": 40,
        "thinking": {"type": "enabled", "budget_tokens": BUDGET},
    }
    if stream:
        with client.messages.stream(**asked) as made:
            message: Any = made.get_final_message()
    else:
        message = client.messages.create(**asked)
    thought, answer = message.content
    assert (thought.type, answer.type) == ("thinking", "text") and answer.text.strip()
    assert BUDGET - 2 <= len(text.tokenizer.encode(thought.thinking)) <= BUDGET + 2


@pytest.mark.parametrize("budget", [0, BUDGET])
def test_formats_and_calls_follow(server: Server, budget: int) -> None:
    """Of a model that says nothing else before it ends."""
    client = openai_client(server)
    held: Any = {"model": "thinker", "messages": ASK, "max_tokens": 90}
    more = {"thinking_budget": budget}
    made: Any = client.chat.completions.create(
        **held, extra_body={**more, "regex": "(Paris|Rome)\\."}
    )
    assert made.choices[0].message.content.strip() in ("Paris.", "Rome.")
    assert bool(getattr(made.choices[0].message, "reasoning_content", "")) == bool(budget)
    calls: Any = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    made = client.chat.completions.create(**held, **calls, extra_body=more)
    (call,) = made.choices[0].message.tool_calls
    assert call.function.name == "ping" and made.choices[0].finish_reason == "tool_calls"


def asked(speaker: Speaker, **fields: Any) -> Any:
    speaker.says("<think>Hm.</think>Well.")
    body = {"model": speaker.model, "messages": ASK, **fields}
    assert speaker.server.http.post("/v1/chat/completions", json=body).status_code == 200
    return speaker.asked()["thinking"]


def test_what_the_runtime_is_told(hermes: Speaker, harmony: Speaker) -> None:
    closing = hermes.tokenizer.encode("</think>").ids
    told = {"tokens": 99, "opening": r"\s*+<think>", "closing": closing, "end": "</think>"}
    assert asked(hermes, thinking_budget=99) == told
    with_tools = asked(hermes, thinking_budget=99, tools=[TOOL])
    assert with_tools.pop("call").startswith("<tool_call>") and with_tools == told
    assert asked(hermes) is None
    assert asked(hermes, reasoning_effort="low") is None
    assert asked(hermes, thinking_budget=0) is None  # switched off: the prompt has closed it
    assert asked(hermes, enable_thinking=False, thinking_budget=9) is None
    begun = [*ASK, {"role": "assistant", "content": "<think>I"}]
    opened = asked(hermes, messages=begun, continue_final_message=True, thinking_budget=9)
    assert opened == {"tokens": 9, "closing": closing, "end": "</think>"}
    body = {
        "model": hermes.model,
        "max_tokens": 99,
        "messages": ASK,
        "thinking": {"type": "enabled", "budget_tokens": 99},
    }
    assert hermes.server.http.post("/v1/messages", json=body).status_code == 200
    assert hermes.asked()["thinking"] == told
    assert asked(harmony, thinking_budget=99) is None  # its thoughts are messages


def test_a_budget_of_nothing_switches_thinking_off(hermes: Speaker) -> None:
    """In both protocols that have one."""
    hermes.says("Well.")
    prompts = []
    for path, kinds in (
        ("/v1/chat/completions", ("enabled", "auto")),
        ("/v1/messages", ("enabled", "adaptive")),
    ):
        nothing = [{"type": kind, "budget_tokens": 0} for kind in kinds]
        for said in (*nothing, {"type": "disabled"}):
            body = {"model": hermes.model, "max_tokens": 99, "messages": ASK, "thinking": said}
            assert hermes.server.http.post(path, json=body).status_code == 200
            assert hermes.asked()["thinking"] is None
            prompts.append(hermes.prompt())
    assert len(set(prompts)) == 1 and prompts[0].rstrip().endswith("</think>")
