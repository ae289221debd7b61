"""One decoder layer: mixer and feed-forward, each behind a norm and beside the residual."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from engine.kernels.moe_layer import MoeSum
from engine.layers.linear import RmsNorm
from engine.layers.step import Step


@dataclass(frozen=True)
class DecoderLayer:
    mixer_norm: RmsNorm
    mixer: Callable[[Tensor, Step], Tensor]
    feed_forward_norm: RmsNorm
    feed_forward: Callable[[Tensor, int], Tensor | MoeSum]
    """Of rows, the first of which are sequences of one token: so many."""

    def __call__(
        self, x: Tensor, added: Tensor | MoeSum | None, step: Step
    ) -> tuple[Tensor, Tensor | MoeSum]:
        """[N, hidden] of all sequences of the step: x, and what is still to be added to it; so are
        the results. Whoever norms the sum adds on the way. Keys, values and states are written."""
        if added is None:
            normed = self.mixer_norm(x)
        else:
            x, normed = self.mixer_norm.after_adding(x, added)
        x, normed = self.feed_forward_norm.after_adding(x, self.mixer(normed, step))
        return x, self.feed_forward(normed, step.singles)
