"""How hot an expert is: decayed counts of its routes, and which memory fits the traffic.

A score is an expert's frequency among its layer's tokens, averaged with weights that halve every
`half_life` tokens (LRFU: Lee et al., "LRFU: A Spectrum of Policies that Subsumes the Least Recently
Used and Least Frequently Used Policies", 2001). A half-life of one token orders experts as
least-recently-used does, a long one as counts do. No half-life is best everywhere, so there are
scores for several, and each earns credit for every routed expert that a cache of its hottest ones
would have had (`credited`). The best credit chooses (`choose`).

Everything is in whole numbers with so many bits of fraction that a GPU and numpy agree exactly, in
scores, ties and choices.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

HALF_LIVES = (1, 4, 16, 128)
"""In tokens; powers of two up to POWERS."""
POWERS = 256
FRACTION = 30
ONE = 1 << FRACTION
"""A frequency of one; scores stay below it."""
CREDIT_BITS = 16
CREDIT_KEPT = round(2 ** (CREDIT_BITS - 1 / 300))
"""Of the credit, at each turn of a layer: it halves in 300."""
HEAD_START_BITS = 8
"""A half-life's credit counts 2^-8 more for each longer one there is: among equals the shortest
chooses, which follows a change of traffic soonest."""
HYSTERESIS_BITS = 8
"""Another half-life is chosen when its credit is 2^-8 better."""

_Longs = NDArray[np.int64]


def powers() -> NDArray[np.int32]:
    """[POWERS]: ONE * 2^(-i / POWERS)"""
    return np.rint(ONE * 2.0 ** (-np.arange(POWERS) / POWERS)).astype(np.int32)


def decay(half_life: int, tokens: int | _Longs) -> _Longs:
    """What so many tokens leave of a score, of ONE."""
    power = powers().astype(np.int64)[tokens % half_life * (POWERS // half_life)]
    return power >> np.minimum(tokens // half_life, FRACTION)


def updated(scores: _Longs, counts: _Longs, tokens: int | _Longs, decayed: _Longs) -> _Longs:
    """Scores after a turn of so many tokens, `counts` routes of which went to each expert, where
    `decayed` is what `decay` says. A turn of no tokens changes nothing: its experts were counted
    before."""
    frequency = np.minimum(counts, tokens) * ((ONE - 1) // np.maximum(tokens, 1))
    after = (scores * decayed + frequency * (ONE - decayed)) >> FRACTION
    return np.where(tokens > 0, after, scores)


def magnitude(scores: _Longs) -> _Longs:
    """What layers compare: a score's power of two, by float32's exponent, 0 for none. Nearly equal
    scores leave it to the order of turns which expert goes."""
    return scores.astype(np.float32).view(np.int32).astype(np.int64) >> 23


def credited(earned: _Longs, scores: _Longs, before: _Longs, counts: _Longs, room: int) -> _Longs:
    """Credits [half-lives, layers] after a turn of these layers. `scores` [half-lives, layers,
    experts] are from before it, `before` [layers, experts] marks the experts of the turn before it:
    they were in slots then, whatever their score. So of `room` slots they have theirs first, and
    the hottest others the rest. `counts` [layers, experts] are the turn's routes."""
    ranks = scores + before * ONE
    experts = ranks.shape[2]
    if room >= experts:
        least = np.zeros(1, dtype=np.int64)
    elif room:
        least = np.partition(ranks, experts - room, axis=2)[..., experts - room, None]
    else:
        least = np.full(1, 2 * ONE)
    hits = ((counts > 0) & (ranks > 0) & (ranks >= least)).sum(2)
    after: _Longs = (earned * CREDIT_KEPT >> CREDIT_BITS) + (hits << CREDIT_BITS)
    return after


def choose(totals: _Longs, chosen: int) -> int:
    """The half-life to go by, of the credits of all layers and the one so far."""
    last = len(HALF_LIVES) - 1
    values = totals * ((1 << HEAD_START_BITS) + last - np.arange(last + 1))
    best = int(values.argmax())
    margin = 1 << HYSTERESIS_BITS
    return best if values[best] * margin > values[chosen] * (margin + 1) else chosen
