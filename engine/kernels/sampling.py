"""Tokens of rows that can be sampled where the logits are. `engine.runtime.sampler` is the rule."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kernels.registry import operation

UNSETTLED = -1
COLUMNS = ("temperature", "top_k", "top_p", "min_p", "draw")
"""Of a row's parameters."""


@operation("sample_rows", cuda="engine.kernels.gpu.sampling")
def sample_rows(logits: Tensor, parameters: Tensor) -> Tensor:
    """A token for each row of logits float32 [S, V], after bias, penalties and mask: int64 [S].

    parameters float64 [S, 5] has COLUMNS: temperature 0 takes the likeliest token, top_k 0, top_p 1
    and min_p 0 filter nothing, the draw is a uniform number in [0, 1). What a kernel cannot settle
    without the host is UNSETTLED, and on a CPU everything is: the sampler answers for it.
    """
    del parameters
    return torch.full((len(logits),), UNSETTLED, dtype=torch.int64, device=logits.device)
