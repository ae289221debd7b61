"""What an engine is made of once its model is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from engine.context.batch import Batch
from engine.context.kv import KvPages
from engine.context.states import StatePool
from engine.messages import Ready, Residency
from engine.scheduler.limits import Limits


class Forward(Protocol):
    """A model: one batch through all layers."""

    def forward(self, batch: Batch, kv: KvPages, states: StatePool | None) -> torch.Tensor:
        """float32 [R, vocab]: the logits of the batch's `logit_rows`."""
        ...


@dataclass(frozen=True)
class ExpertCounters:
    """Since the start. All zero for a model without routed experts."""

    hits: int = 0
    misses: int = 0
    fills: int = 0
    link_bytes: int = 0
    host_bytes: int = 0
    """Bytes of expert weights that were computed in place, in host memory."""
    slots: int = 0
    slots_used: int = 0
    total: int = 0
    """Routed experts of all layers together."""
    store_bytes: int = 0
    slot_bytes: int = 0


class Experts(Protocol):
    """The expert runtime as the engine sees it; `loading` adapts the real one."""

    def begin_step(self) -> None: ...

    def end_step(self) -> None: ...

    def counters(self) -> ExpertCounters: ...

    def residency(self) -> Residency: ...


class NoExperts:
    """Of a model all of whose layers are dense."""

    def begin_step(self) -> None: ...

    def end_step(self) -> None: ...

    def counters(self) -> ExpertCounters:
        return ExpertCounters()

    def residency(self) -> Residency:
        return Residency()


@dataclass
class Parts:
    """Everything that owns memory, and what is known about it."""

    ready: Ready
    limits: Limits
    device: torch.device
    model: Forward
    kv: KvPages
    states: StatePool | None
    experts: Experts
    dense_bytes: int
    workspace_bytes: int
    host_is_device: bool
    """Device `cpu`: what would be in VRAM is in host memory and is told as such."""
    vram_total_bytes: int
