"""generation_config.json's sampling becomes the default of every request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.chat.sampling import sampling_defaults
from engine.errors import ModelConfigError
from engine.messages import Sampling

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


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"temperature": "warm"}, "temperature is 'warm'"),
        ({"top_p": 7}, "top_p is 7"),
        ({"top_k": True}, "top_k is True"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
    ],
)
def test_what_cannot_be_is_named(config: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelConfigError) as raised:
        sampling_defaults(config, ORIGIN)
    assert words in raised.value.message and str(ORIGIN) in raised.value.message
