"""Which experts conversations were routed to: recorded once, replayed by expert_cache.py.

A file of routes is JSON: the model's name, its numbers of routed layers and of experts, and the
conversations, each a list of steps. A step says whether it decoded (else it read the prompt), and
for each layer, numbered from 0, the experts of every token: [layer, [[expert, ...], ...]].
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import torch

Call = tuple[int, list[list[int]]]
"""A layer and the experts of each token."""

SIMULATED = (24, 128, 8)
"""Layers, experts, and experts a token."""


@dataclass
class Step:
    decode: bool
    calls: list[Call] = field(default_factory=list)


@dataclass(frozen=True)
class Routes:
    model: str
    layers: int
    experts: int
    conversations: list[list[Step]]


def read(path: Path) -> Routes:
    """Raises OSError, and ValueError for what is no file of routes."""
    routes = msgspec.json.decode(path.read_bytes(), type=Routes)
    for step in (step for steps in routes.conversations for step in steps):
        for layer, ids in step.calls:
            named = [expert for row in ids for expert in row]
            if not 0 <= layer < routes.layers or not all(0 <= e < routes.experts for e in named):
                raise ValueError(f"{path} has layers or experts beyond those that it names")
    return routes


def write(routes: Routes, path: Path) -> None:
    path.write_bytes(msgspec.json.encode(routes))


def distinct(ids: list[list[int]]) -> list[int]:
    """Experts that some token is routed to, ascending."""
    return sorted({expert for row in ids for expert in row})


def simulated(sequences: int) -> Routes:
    """Routing of a batch by a fixed liking for some experts and a drifting one of each sequence.

    Sixty steps as six conversations, so that three warm the cache. Not any model's routing: it
    shows how a rule behaves when a step's experts come near the number of slots.
    """
    layers, experts, top_k = SIMULATED
    chance = torch.Generator().manual_seed(0)
    liking = torch.randn(layers, experts, generator=chance)
    mood = torch.randn(sequences, layers, experts, generator=chance)
    conversations: list[list[Step]] = [[] for _ in range(6)]
    for steps in conversations:
        for _ in range(10):
            mood = 0.6 * mood + 0.8 * torch.randn(mood.shape, generator=chance)
            ids = (liking + mood).topk(top_k, dim=-1).indices
            calls = [(layer, ids[:, layer].tolist()) for layer in range(layers)]
            steps.append(Step(decode=True, calls=calls))
    name = f"simulated routing, {sequences} sequences, {top_k} experts each"
    return Routes(name, layers, experts, conversations)
