"""A prompt that is too long is told which limit it met: the model's, an option's, or memory's."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.messages import Ready
from engine.options import EngineOptions
from engine.server.context_limit import remedy
from tests.server.running import Server, running
from tests.server.tiny_model import CONTEXT


def refusals(server: Server) -> list[str]:
    """Messages for one prompt too long, as chat, as text and as tokens."""
    texts = ({"prompt": "word " * CONTEXT}, {"prompt": [5] * CONTEXT})
    answers = [server.chat("word " * CONTEXT)]
    answers += [
        server.http.post("/v1/completions", json={"model": server.model, **text}) for text in texts
    ]
    assert {answer.json()["error"]["code"] for answer in answers} == {"context_length_exceeded"}
    return [answer.json()["error"]["message"] for answer in answers]


def test_the_models_own_limit(server: Server) -> None:
    for message in refusals(server):
        assert message.endswith(
            "Shorten the conversation. The limit is the model's own: no option raises it."
        )
        assert "--" not in message


@pytest.mark.parametrize(
    ("options", "remedy_"),
    [(("--context", "64"), "a larger --context"), (("--kv-tokens", "128"), "more --kv-tokens")],
)
def test_the_limit_of_an_option(
    tiny_model: Path, tmp_path: Path, options: tuple[str, ...], remedy_: str
) -> None:
    with running(tiny_model, tmp_path, "--device", "cpu", *options) as server:
        for message in refusals(server):
            assert f"maximum context length is {options[1]} tokens" in message
            assert (
                f"Or start Headrace with {remedy_}: the model takes up to {CONTEXT} tokens."
                in message
            )


def test_the_limit_of_memory() -> None:
    ready = Ready(
        family="x",
        device="cpu",
        dtype="float32",
        context_tokens=64,
        kv_tokens=64,
        vocab_size=9,
        load_seconds=0.0,
        model_context_tokens=4096,
    )
    for context in (0, 4096):
        sentence = remedy(ready, EngineOptions(model="x", context_tokens=context))
        assert "Memory holds no more" in sentence and "4096" in sentence
