"""One decoder layer: mixer and feed-forward, each behind a norm and beside the residual."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from engine.layers.linear import RmsNorm
from engine.layers.step import Step


@dataclass(frozen=True)
class DecoderLayer:
    mixer_norm: RmsNorm
    mixer: Callable[[Tensor, Step], Tensor]
    feed_forward_norm: RmsNorm
    feed_forward: Callable[[Tensor, int], Tensor]
    """Of rows, the first of which are sequences of one token: so many. Its result is written to."""

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """x [N, hidden] of all sequences of the step: [N, hidden]. Its keys, values and states are
        written on the way."""
        mixed = self.mixer(self.mixer_norm(x), step)
        x, normed = self.feed_forward_norm.after_adding(x, mixed)
        return self.feed_forward(normed, step.singles).add_(x)
