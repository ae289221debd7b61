"""How many examples the property tests try."""

from __future__ import annotations

from hypothesis import settings

USUAL = 100
"""Hypothesis's own number, which a plain run keeps; the profile of a full run has more."""


def examples(count: int) -> int:
    """`count` in a plain run; in a full one as many times more as its profile has."""
    return count * settings().max_examples // USUAL
