"""How far logits are from a reference's, and what is too far."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

_BLOCK_ROWS = 32
FLOAT32_RELATIVE = 1e-4
"""Relative error in norm of float32 logits: other orders of summation cost 1e-6 to 1e-5, a wrong
value anywhere costs more than this. tests/parity holds every family to the same."""
BFLOAT16_DIVERGENCE = 0.01
"""Mean KL divergence of bfloat16 logits, nats a token: rounding activations to 8 bits costs less
than this, a rounding or a sum at a wrong place costs tenths. tests/parity has the same bound."""
BFLOAT16_SHARE = 2.0
"""A model that rounding costs more (one of random weights, say) is held to so many times what
torch's own bfloat16 operations cost it: they round more often than our kernels do."""


@dataclass(frozen=True)
class Figures:
    """Of T rows of logits beside the reference's."""

    error: float
    """Largest absolute difference."""
    relative: float
    """Norm of the difference over the reference's norm."""
    divergence: float
    """Mean KL divergence of the reference's distribution from these, nats a token."""
    worst_divergence: float
    agreement: float
    """Share of rows whose likeliest token is the reference's."""
    perplexity: float
    """On the text's own next tokens."""

    def excess(self, rounded: Figures | None) -> str:
        """Which tolerance is exceeded, with both numbers, "" if none is. `rounded`: what torch's
        own operations come to in bfloat16, if this is of bfloat16."""
        if not math.isfinite(self.relative):
            return "its logits are not all numbers"
        if rounded is None:
            if self.relative > FLOAT32_RELATIVE:
                return f"its relative error is {self.relative:.2e}, more than {FLOAT32_RELATIVE:g}"
            return ""
        most = max(BFLOAT16_DIVERGENCE, BFLOAT16_SHARE * rounded.divergence)
        if self.divergence <= most:
            return ""
        return f"its mean KL divergence is {self.divergence:.2e} nats a token, more than {most:.2g}"


def measured(logits: Tensor, reference: Tensor, targets: list[int]) -> Figures:
    """Both float32 [T, vocab]; `targets` are the tokens that the first rows foretell, T - 1 or
    fewer. Sums are float64, a few rows at a time."""
    error = off = norm = loss = 0.0
    divergences, same = [], 0
    for start in range(0, len(logits), _BLOCK_ROWS):
        rows = slice(start, start + _BLOCK_ROWS)
        got, wanted = logits[rows].double(), reference[rows].double()
        difference = got - wanted
        error = max(error, float(difference.abs().max()))
        off += float(difference.square().sum())
        norm += float(wanted.square().sum())
        same += int((got.argmax(-1) == wanted.argmax(-1)).sum())
        told, right = functional.log_softmax(got, -1), functional.log_softmax(wanted, -1)
        divergences.append((right.exp() * (right - told)).sum(-1))
        next_tokens = torch.tensor(targets[rows], dtype=torch.int64)
        loss -= float(told[: len(next_tokens)].gather(1, next_tokens.unsqueeze(1)).sum())
    divergence = torch.cat(divergences)
    return Figures(
        error=error,
        relative=math.sqrt(off / norm) if norm else math.inf,
        divergence=float(divergence.mean()),
        worst_divergence=float(divergence.max()),
        agreement=same / len(logits),
        # torch's: of nonsense it may be infinite.
        perplexity=float(torch.tensor(loss / len(targets), dtype=torch.float64).exp()),
    )
