"""What an engine is made of once its model is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from engine.context.batch import Batch
from engine.context.kv import KvPages
from engine.context.states import StatePool
from engine.experts.runtime import ExpertRuntime
from engine.layers.step import DecodeRows
from engine.memory.budget import Budget
from engine.memory.device import Device
from engine.messages import Ready
from engine.scheduler.limits import Limits


class Forward(Protocol):
    """A model: one batch through all layers."""

    def forward(self, batch: Batch, kv: KvPages, states: StatePool | None) -> torch.Tensor:
        """float32 [R, vocab]: the logits of the batch's `logit_rows`."""
        ...

    def decode(self, rows: DecodeRows, kv: KvPages, states: StatePool | None) -> torch.Tensor:
        """[S, vocab]: the logits of one token of each of S sequences, on a GPU, in the compute
        dtype."""
        ...


@dataclass
class Parts:
    """Everything that owns memory, and what is known about it."""

    ready: Ready
    limits: Limits
    device: Device
    budget: Budget
    model: Forward
    dense_bytes: int
    """Weights outside the routed experts, as placed."""
    kv: KvPages
    states: StatePool | None
    """None for a model without recurrent layers."""
    experts: ExpertRuntime | None
    """None for a model without routed experts."""
    top_k: int = 0
    """Routed experts that a token takes in a MoE layer."""
