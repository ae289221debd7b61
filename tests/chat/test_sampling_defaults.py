"""generation_config.json's sampling becomes the default of every request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.chat.sampling import RANGES, for_runtime, sampling_defaults
from engine.messages import Sampling
from engine.runtime.sampling_row import validate

ORIGIN = Path("generation_config.json")


def test_the_authors_values_are_taken() -> None:
    config = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.1, "do_sample": True}
    assert sampling_defaults({**config, "repetition_penalty": 1.05}, ORIGIN) == Sampling(
        temperature=0.6, top_p=0.95, top_k=20, min_p=0.1, repetition_penalty=1.05
    )


def test_nothing_said_is_the_models_own_distribution() -> None:
    assert sampling_defaults({"eos_token_id": 2, "temperature": None}, ORIGIN) == Sampling()


def test_an_explicit_greedy_is_greedy() -> None:
    assert sampling_defaults({"do_sample": False, "temperature": 0.7}, ORIGIN).temperature == 0


def test_a_top_k_that_cuts_nothing() -> None:
    assert sampling_defaults({"top_k": -1}, ORIGIN) == Sampling()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"temperature": "warm"}, "temperature is 'warm'"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 7}, "top_p is 7"),
        ({"top_k": True}, "top_k is True"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
    ],
)
def test_what_cannot_be_is_named_and_left_out(
    config: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert sampling_defaults({**config, "min_p": 0.1}, ORIGIN) == Sampling(min_p=0.1)
    assert words in caplog.text and str(ORIGIN) in caplog.text


@pytest.mark.parametrize("end", [0, 1])
def test_the_runtime_takes_what_the_server_lets_through(end: int) -> None:
    for name, ends in RANGES.items():
        value = max(0, ends[end]) if name == "top_k" else ends[end]
        chosen = for_runtime(msgspec.structs.replace(Sampling(), **{name: value}))
        validate(chosen, vocab_size=9)


def test_an_author_s_top_p_of_zero_leaves_the_likeliest_token() -> None:
    chosen = for_runtime(sampling_defaults({"top_p": 0.0}, ORIGIN))
    assert (chosen.top_k, chosen.top_p) == (1, 1.0)
