"""What sampling remembers of one request: its parameters, its draws and what it has said so far."""

from __future__ import annotations

import math
import os

import torch

from engine.errors import InvalidRequest
from engine.messages import Sampling

_MASK64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, the increment of SplitMix64


def validate(sampling: Sampling, vocab_size: int) -> None:
    """Raise InvalidRequest, naming the parameter and its value, for one outside its range."""
    ranges = {
        "temperature": (sampling.temperature, 0.0, math.inf),
        "top_k": (sampling.top_k, 0, math.inf),
        "top_p": (sampling.top_p, 0.0, 1.0),
        "min_p": (sampling.min_p, 0.0, 1.0),
        "presence_penalty": (sampling.presence_penalty, -math.inf, math.inf),
        "frequency_penalty": (sampling.frequency_penalty, -math.inf, math.inf),
        "repetition_penalty": (sampling.repetition_penalty, 0.0, math.inf),
    }
    for name, (value, lowest, highest) in ranges.items():
        if not math.isfinite(value) or not lowest <= value <= highest:
            raise InvalidRequest(
                f"{name} is {value}; it must lie between {lowest} and {highest}.", param=name
            )
    for name in ("top_p", "repetition_penalty"):
        if getattr(sampling, name) == 0:
            raise InvalidRequest(f"{name} is 0; it must be above 0.", param=name)
    for token, value in sampling.bias.items():
        if not 0 <= token < vocab_size or not math.isfinite(value):
            raise InvalidRequest(
                f"The bias {value} of token {token} is not a number for one of the "
                f"{vocab_size} tokens.",
                param="logit_bias",
            )


def uniform(seed: int, index: int) -> float:
    """The draw number `index` of a seed, in [0, 1): SplitMix64 as a function of a counter.

    It has no state, so a token's draw depends on neither the batch, nor on a step that failed and
    was repeated, nor on a preemption.
    """
    start = _mix((seed & _MASK64) + _GOLDEN)
    return (_mix(start + index * _GOLDEN) >> 11) * 2.0**-53


def _mix(value: int) -> int:
    value &= _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)


class _Tally:
    """Tokens that penalties look at, and how often the output has each.

    Sparse: a text holds some thousand different tokens, a vocabulary a hundred times as many.
    """

    def __init__(self, tokens: list[int], device: torch.device) -> None:
        distinct = list(dict.fromkeys(tokens))
        self._place = {token: place for place, token in enumerate(distinct)}
        room = max(64, 2 * len(distinct))
        self._ids = torch.zeros(room, dtype=torch.int64, device=device)
        self._ids[: len(distinct)] = torch.tensor(distinct, dtype=torch.int64)
        self._counts = torch.zeros(room, dtype=torch.float32, device=device)

    @property
    def ids(self) -> torch.Tensor:
        """int64 [distinct]"""
        return self._ids[: len(self._place)]

    @property
    def counts(self) -> torch.Tensor:
        """float32 [distinct]: occurrences in the output."""
        return self._counts[: len(self._place)]

    def add(self, token: int) -> None:
        place = self._place.get(token)
        if place is None:
            place = len(self._place)
            if place == len(self._ids):
                self._ids = torch.cat([self._ids, torch.zeros_like(self._ids)])
                self._counts = torch.cat([self._counts, torch.zeros_like(self._counts)])
            self._place[token] = place
            self._ids[place] = token
        self._counts[place] += 1


class SamplingRow:
    """One request's side of sampling. Tensors live on the device of the logits.

    Presence and frequency penalties count the output only, as OpenAI's do; the repetition penalty
    counts prompt and output, as transformers' does.
    """

    def __init__(
        self, sampling: Sampling, prompt: list[int], vocab_size: int, device: torch.device
    ) -> None:
        """Raises InvalidRequest as `validate` does."""
        validate(sampling, vocab_size)
        self.sampling = sampling
        self.drawn = 0
        """Tokens that were sampled and recorded so far."""
        self.seed = (
            int.from_bytes(os.urandom(8), "little") if sampling.seed is None else sampling.seed
        )
        self.bias: tuple[torch.Tensor, torch.Tensor] | None = None
        if sampling.bias:
            self.bias = (
                torch.tensor(list(sampling.bias), dtype=torch.int64, device=device),
                torch.tensor(list(sampling.bias.values()), dtype=torch.float32, device=device),
            )
        self._tally: _Tally | None = None
        if sampling.repetition_penalty != 1.0:
            self._tally = _Tally(prompt, device)
        elif sampling.presence_penalty or sampling.frequency_penalty:
            self._tally = _Tally([], device)

    @property
    def greedy(self) -> bool:
        return self.sampling.temperature == 0

    @property
    def filtered(self) -> bool:
        return self.sampling.top_k > 0 or self.sampling.top_p < 1 or self.sampling.min_p > 0

    @property
    def adjusts(self) -> bool:
        return self.bias is not None or self._tally is not None

    def draw(self) -> float:
        """The uniform number that picks the next token."""
        return uniform(self.seed, self.drawn)

    def record(self, token: int) -> None:
        """The token is part of the output now."""
        self.drawn += 1
        if self._tally is not None:
            self._tally.add(token)

    def adjust(self, scores: torch.Tensor) -> None:
        """Bias, then penalties, in place on `scores` float32 [V]."""
        if self.bias is not None:
            ids, values = self.bias
            scores[ids] += values
        if self._tally is None:
            return
        chosen, counts = scores[self._tally.ids], self._tally.counts
        penalty = self.sampling.repetition_penalty
        if penalty != 1.0:
            chosen = torch.where(chosen > 0, chosen / penalty, chosen * penalty)
        chosen -= self.sampling.frequency_penalty * counts
        chosen -= self.sampling.presence_penalty * (counts > 0)
        scores[self._tally.ids] = chosen
