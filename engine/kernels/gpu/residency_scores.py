"""Scores of experts in kernels: engine.kernels.expert_scores, whole number for whole number."""

from __future__ import annotations

import triton
import triton.language as tl

from engine.kernels import expert_scores

FRACTION = tl.constexpr(expert_scores.FRACTION)
ONE = tl.constexpr(expert_scores.ONE)
_POWERS = tl.constexpr(expert_scores.POWERS)
_EXPONENTS = tl.constexpr(
    sum(
        (half_life.bit_length() - 1) << 4 * h
        for h, half_life in enumerate(expert_scores.HALF_LIVES)
    )
)
"""Logarithms of the half-lives, four bits each: no table to wait for."""


@triton.jit
def decay_of(powers, h, tokens):
    """int32: what `tokens` leave of a score of half-life number h, of ONE; all of it below 1."""
    half_life = 1 << (((h * 0 + _EXPONENTS) >> 4 * h) & 15)
    tokens = tl.maximum(tokens, 0)
    power = tl.load(powers + tokens % half_life * (_POWERS // half_life))
    return power >> tl.minimum(tokens // half_life, FRACTION)


@triton.jit
def updated(score, counts, tokens, decay):
    """int32: scores after a turn of `tokens`, unchanged after one of 0."""
    frequency = tl.minimum(counts, tokens) * ((ONE - 1) // tl.maximum(tokens, 1))
    after = score.to(tl.int64) * decay + frequency.to(tl.int64) * (ONE - decay)
    return tl.where(tokens > 0, (after >> FRACTION).to(tl.int32), score)


@triton.jit
def magnitude(score):
    """int64: a score's power of two."""
    return score.to(tl.float32).to(tl.int32, bitcast=True).to(tl.int64) >> 23
