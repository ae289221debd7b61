"""OpenAI's protocol, by OpenAI's own client and by hand where a client would hide the bytes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2 as httpx
import openai
import pytest
from tokenizers import Tokenizer

from engine.chat.model_files import ModelPlace
from engine.chat.tokenizer import load_tokenizer
from engine.messages import TokenLogprob
from engine.server.blocks import Block
from engine.server.collected import Completed
from engine.server.completions_answers import CompletionAnswer
from engine.server.generation import Ended, Started
from engine.server.output import TokenText
from tests.server.running import Server, frames
from tests.server.tiny_model import CONTEXT

USER = [{"role": "user", "content": "Say ok."}]


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with (
        httpx.Client(trust_env=False) as http,
        openai.OpenAI(
            base_url=f"{server.url}/v1", api_key="any", max_retries=0, http_client=http
        ) as made,
    ):
        yield made


@pytest.fixture
def tokenizer(tiny_model: Any) -> Tokenizer:
    return Tokenizer.from_file(str(tiny_model / "tokenizer.json"))


def ask(client: openai.OpenAI, server: Server, **fields: Any) -> Any:
    fields = {"messages": USER, "max_tokens": 8, "temperature": 0, **fields}
    return client.chat.completions.create(model=server.model, **fields)


def test_a_chat(client: openai.OpenAI, server: Server, tokenizer: Tokenizer) -> None:
    answer = ask(client, server, extra_body={"ignore_eos": True})
    assert answer.object == "chat.completion" and answer.model == server.model
    choice = answer.choices[0]
    assert choice.finish_reason == "length" and choice.message.role == "assistant"
    assert answer.usage.completion_tokens == 8
    rendered = "<|im_start|>user\nSay ok.<|im_end|>\n<|im_start|>assistant\n"
    assert answer.usage.prompt_tokens == len(tokenizer.encode(rendered).ids)


def test_a_stream_says_the_same_as_the_whole(client: openai.OpenAI, server: Server) -> None:
    for seed in range(3):
        fields = {"temperature": 1, "seed": seed, "max_tokens": 40}
        whole = ask(client, server, **fields)
        chunks = list(
            ask(client, server, stream=True, stream_options={"include_usage": True}, **fields)
        )
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == whole.choices[0].message.content
        reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
        assert reasons[-1] == whole.choices[0].finish_reason and not any(reasons[:-1])
        assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
        assert {c.id for c in chunks} == {chunks[0].id}


def test_usage_comes_only_when_asked_for(server: Server) -> None:
    body = {"model": server.model, "messages": USER, "max_tokens": 2, "stream": True}
    with server.http.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        seen = list(frames(response))
    assert seen[-1] == "[DONE]" and seen.count("[DONE]") == 1
    assert not any("usage" in chunk or not chunk["choices"] for chunk in seen[:-1])
    assert seen[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}


def test_logprobs_describe_the_text(client: openai.OpenAI, server: Server) -> None:
    answer = ask(
        client, server, logprobs=True, top_logprobs=2, extra_body={"ignore_eos": True}, stop=None
    )
    entries = answer.choices[0].logprobs.content
    assert len(entries) == answer.usage.completion_tokens
    raw = b"".join(bytes(entry.bytes) for entry in entries)
    assert raw.decode("utf-8", "replace").startswith(answer.choices[0].message.content)
    for entry in entries:
        assert entry.logprob <= 0 and len(entry.top_logprobs) == 2
        # Greedy: the chosen token is the likeliest.
        assert entry.top_logprobs[0].logprob == pytest.approx(entry.logprob)
    streamed = ask(
        client,
        server,
        logprobs=True,
        top_logprobs=2,
        extra_body={"ignore_eos": True},
        stream=True,
    )
    late = [e for c in streamed if c.choices[0].logprobs for e in c.choices[0].logprobs.content]
    assert late == entries


def test_stop_strings_cut_across_tokens(client: openai.OpenAI, server: Server) -> None:
    fields: dict[str, Any] = {"max_tokens": 60, "extra_body": {"ignore_eos": True}}
    text = ask(client, server, **fields).choices[0].message.content
    stop = text[len(text) // 2 :][:3]
    expected = text[: text.index(stop)]
    cut = ask(client, server, stop=["never in there", stop], **fields)
    assert cut.choices[0].message.content == expected
    assert cut.choices[0].finish_reason == "stop" and cut.usage.completion_tokens < 60
    streamed = ask(client, server, stop=stop, stream=True, **fields)
    deltas = [chunk.choices[0].delta.content or "" for chunk in streamed]
    assert "".join(deltas) == expected


def test_logprobs_end_where_the_text_ends(client: openai.OpenAI, server: Server) -> None:
    fields: dict[str, Any] = {
        "max_tokens": 40,
        "logprobs": True,
        "extra_body": {"ignore_eos": True},
    }
    text = ask(client, server, **fields).choices[0].message.content
    stop = text[len(text) // 2 :][:3]
    cut = ask(client, server, stop=stop, **fields).choices[0]
    raw = b"".join(bytes(entry.bytes) for entry in cut.logprobs.content)
    shown = cut.message.content
    # The last token shown may reach into the stop string, and no further.
    assert raw.decode("utf-8", "replace").startswith(shown)
    before_last = b"".join(bytes(entry.bytes) for entry in cut.logprobs.content[:-1])
    assert len(before_last.decode("utf-8", "replace")) <= len(shown)


def test_several_clients_at_once_get_what_each_gets_alone(
    client: openai.OpenAI, server: Server
) -> None:
    def text(number: int) -> str:
        answer = ask(
            client,
            server,
            messages=[{"role": "user", "content": f"{number} " * (number + 1)}],
            max_tokens=24,
            seed=number,
            temperature=1,
        )
        return str(answer.choices[0].message.content)

    alone = [text(number) for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(text, range(6))) == alone


@pytest.mark.parametrize("end", [0, 2])
def test_every_end_token_ends_and_none_is_shown(
    client: openai.OpenAI, server: Server, end: int
) -> None:
    # Ends of the tiny model: 2 in config.json, 0 and 2 in generation_config.json.
    answer = ask(client, server, logit_bias={str(end): 100})
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content == "" and answer.usage.completion_tokens == 0
    ignored = ask(client, server, logit_bias={str(end): 100}, extra_body={"ignore_eos": True})
    assert ignored.choices[0].finish_reason == "length"
    assert ignored.choices[0].message.content == ""


def test_a_seed_repeats_and_bias_and_penalties_act(client: openai.OpenAI, server: Server) -> None:
    def text(**fields: Any) -> str:
        answer = ask(client, server, max_tokens=24, temperature=1.5, **fields)
        return str(answer.choices[0].message.content)

    assert text(seed=5) == text(seed=5)
    assert len({text(seed=seed) for seed in range(4)}) > 1
    greedy = ask(client, server, logit_bias={"300": 100}).choices[0].message.content
    once = ask(client, server, logit_bias={"300": 100}, frequency_penalty=2, presence_penalty=2)
    extensions = {"top_k": 1, "min_p": 0.1, "repetition_penalty": 1.1}
    assert greedy and once.choices[0].finish_reason
    assert text(seed=1, extra_body={"top_k": 1}) == text(seed=2, extra_body={"top_k": 1})
    assert text(seed=1, extra_body=extensions) is not None


def test_messages_of_every_kind_are_read(client: openai.OpenAI, server: Server) -> None:
    messages: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "again", "name": "Ann"},
        {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "annotations": [],
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "17"},
        {"role": "assistant", "content": "Hello.", "tool_calls": []},
        {"role": "user", "content": "bye"},
    ]
    more = ask(client, server, messages=messages)
    less = ask(client, server, messages=messages[1:])
    assert more.usage.prompt_tokens > less.usage.prompt_tokens


def test_harmless_parameters_are_accepted(client: openai.OpenAI, server: Server) -> None:
    answer = ask(
        client,
        server,
        user="u",
        metadata={"k": "v"},
        store=False,
        service_tier="auto",
        parallel_tool_calls=True,
        prompt_cache_key="k",
        safety_identifier="s",
        tools=[],
        tool_choice="none",
        response_format={"type": "text"},
        n=1,
        reasoning_effort="none",
    )
    assert answer.choices[0].finish_reason


def test_top_p_zero_leaves_the_likeliest_token(client: openai.OpenAI, server: Server) -> None:
    greedy = ask(client, server).choices[0].message.content
    for seed in range(3):
        answer = ask(client, server, temperature=2, top_p=0, seed=seed)
        assert answer.choices[0].message.content == greedy


def test_equal_labels_keep_the_likeliest(tokenizer: Tokenizer, tiny_model: Any) -> None:
    """In completions' old shape, whose keys are texts: bytes of a character all read U+FFFD."""
    ours = load_tokenizer(ModelPlace(tiny_model, "m"))
    halves = [token for token in range(ours.vocab_size) if ours.token_label(token) == "\ufffd"]
    top = tuple(TokenLogprob(token, -1.0 - n) for n, token in enumerate(halves[:3]))
    token = TokenText(halves[0], 0, -1.0, top)
    done = Ended("stop", None, 1, 1)
    answer = CompletionAnswer("m", ours, logprobs=True)
    whole = answer.whole([Completed(Started(1, 0), done, [Block("text", 0)], [token])])
    choice = whole["choices"][0]
    assert choice["logprobs"]["top_logprobs"] == [{"\ufffd": -1.0}]


def test_a_limit_beyond_the_context_is_an_upper_bound(server: Server) -> None:
    prompt = list(range(100, 350)) * 17
    prompt = prompt[: CONTEXT - 3]
    body = {"model": server.model, "prompt": prompt, "max_tokens": 5000, "ignore_eos": True}
    answer = server.http.post("/v1/completions", json=body).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 3


# --- completions ------------------------------------------------------------------------------


def test_completions(client: openai.OpenAI, server: Server, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("hello world").ids
    texts = set()
    for prompt in ("hello world", ["hello world"], ids, [ids]):
        answer = client.completions.create(
            model=server.model,
            prompt=prompt,
            temperature=0,
            max_tokens=6,
            logprobs=1,
            extra_body={"ignore_eos": True},
        )
        assert answer.usage is not None and answer.usage.prompt_tokens == len(ids)
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None and logprobs.tokens is not None
        assert len(logprobs.tokens) == len(logprobs.text_offset or []) == 6
        texts.add(answer.choices[0].text)
    assert len(texts) == 1
    stream = client.completions.create(
        model=server.model,
        prompt="hello world",
        temperature=0,
        max_tokens=6,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    assert "".join(chunk.choices[0].text for chunk in stream) in texts


# --- models -----------------------------------------------------------------------------------


def test_models(client: openai.OpenAI, server: Server) -> None:
    listed = client.models.list().data
    assert [model.id for model in listed] == [server.model]
    assert client.models.retrieve(server.model).id == server.model
    with pytest.raises(openai.NotFoundError, match="not served here"):
        client.models.retrieve("other/model")


# --- bodies -----------------------------------------------------------------------------------


def test_a_gzip_body_is_read(server: Server) -> None:
    body = json.dumps({"model": server.model, "messages": USER, "max_tokens": 2}).encode()

    def send(content: bytes, encoding: str = "gzip") -> httpx.Response:
        headers = {"Content-Encoding": encoding, "Content-Type": "application/json"}
        return server.http.post("/v1/chat/completions", content=content, headers=headers)

    assert send(gzip.compress(body)).is_success
    cut = send(gzip.compress(body)[:-9])
    assert cut.status_code == 400 and "gzip" in cut.json()["error"]["message"]
    two = send(gzip.compress(body[:9]) + gzip.compress(body[9:]))
    assert two.status_code == 400 and "one member" in two.json()["error"]["message"]
    assert send(gzip.compress(bytes(40 << 20))).status_code == 413
    assert send(body, "br").status_code == 415
