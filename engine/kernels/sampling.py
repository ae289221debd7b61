"""Tokens of rows that can be sampled where the logits are. `engine.runtime.sampler` is the rule."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kernels.registry import operation

UNSETTLED = -1
NOT_FINITE = -2
"""In place of a token: the row's logits are not all numbers."""
COLUMNS = ("temperature", "top_k", "top_p", "min_p", "draw")
"""Of a row's parameters."""


@operation("sample_rows", cuda="engine.kernels.gpu.sampling")
def sample_rows(
    logits: Tensor, parameters: Tensor, finite: bool = False, out: Tensor | None = None
) -> Tensor:
    """A token for each row of logits [S, V], after bias, penalties and mask: int64 [S], written to
    `out` if given, which may be pinned host memory.

    parameters float64 [S, 5] has COLUMNS: temperature 0 takes the likeliest token, top_k 0, top_p 1
    and min_p 0 filter nothing, the draw is a uniform number in [0, 1). If logits must be `finite`,
    the token of a row that has another is NOT_FINITE. What a kernel cannot settle without the host
    is UNSETTLED, and on a CPU everything else is: the sampler answers for it.
    """
    del parameters
    tokens = torch.full((len(logits),), UNSETTLED, dtype=torch.int64, device=logits.device)
    if finite:
        tokens[~all_finite(logits)] = NOT_FINITE
    return tokens if out is None else out.copy_(tokens)


def all_finite(logits: Tensor) -> Tensor:
    """bool [S]: rows without NaN and infinities."""
    # A NaN wins both searches, and no tensor as large as the logits is made for them.
    return logits.amax(dim=-1).isfinite() & logits.amin(dim=-1).isfinite()
