"""What an engine is made of once its model is loaded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch

from engine.context.batch import Batch
from engine.context.kv import KvPages
from engine.context.states import StatePool
from engine.experts.runtime import ExpertRuntime
from engine.layers.step import DecodeRows
from engine.memory.budget import Budget, Share
from engine.memory.device import Device
from engine.memory.device_memory import DeviceMemory
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
    memory: DeviceMemory
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
    emulated: bool = False
    """The device is played (sim), or its memory or link are."""
    graph_bytes: int = 0
    """What captured steps hold of torch's memory."""

    @property
    def share(self) -> Share:
        """Of the memory that the device computes in."""
        return self.budget.device or self.budget.host

    @property
    def held_by_torch(self) -> int:
        """Of torch's memory, what is no step's."""
        arenas = 0
        if not self.memory.resizes:
            experts = self.experts.slot_bytes if self.experts is not None else 0
            arenas = experts + self.kv.backed + (self.states.backed if self.states else 0)
        return self.dense_bytes + self.graph_bytes + arenas

    def adopt(self, budget: Budget) -> None:
        """Give slots and context what another division gives them. Only between steps.

        Raises OutOfMemory.
        """
        pages = budget.kv_tokens // self.kv.page_tokens
        # What shrinks makes room for what grows.
        self.kv.resize(min(pages, self.kv.pages))
        if self.experts is not None:
            self.experts.resize(budget.slots)
        self.kv.resize(pages)
        self.budget = budget
        self.limits = replace(
            self.limits,
            context_tokens=budget.context_tokens,
            kv_tokens=budget.kv_tokens,
            chunk_tokens=budget.chunk_tokens,
        )
