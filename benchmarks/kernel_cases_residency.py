"""Residency at the shape of Qwen3.6-35B-A3B (40 layers of 256 experts), half and all of them in
slots. Its kernels wait for memory and move little of it: their share of the floor says nothing."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.kernel_cases_weights import EXPERTS, ROUTES, Case
from engine.experts.residency import Residency
from engine.kernels.expert_scores import HALF_LIVES
from engine.kernels.residency import MISSES, TOTAL, residency_route

LAYERS = 40


def _random_ids(tokens: int) -> Tensor:
    """int64 [LAYERS, tokens, ROUTES]"""
    return torch.rand(LAYERS, tokens, EXPERTS, device="cuda").topk(ROUTES).indices


def _filled(slots: int) -> Residency:
    """With every slot taken, and scores of many steps."""
    residency = Residency(LAYERS, EXPERTS, slots, device=torch.device("cuda"))
    for _ in range(100):
        _step(residency, _random_ids(8))
    return residency


def _step(residency: Residency, ids: Tensor) -> None:
    residency.begin_step()
    for layer in range(LAYERS):
        residency.route(layer, ids[layer])


def _difference(residency: Residency, ids: Tensor) -> float:
    """Share of slots that a step in host memory gives to others: 0 or an error."""
    host = Residency(LAYERS, EXPERTS, residency.slots)
    host.tables.copy_(residency.tables)
    _step(residency, ids)
    _step(host, ids.cpu())
    return float((residency.tables.owner.cpu() != host.tables.owner).float().mean())


def _begin(slots: int) -> Case:
    residency = _filled(slots)
    nbytes = 4.0 * (3 * slots + (6 + 2 * len(HALF_LIVES)) * LAYERS * EXPERTS)
    ids = _random_ids(1)
    name = f"residency begin {slots} slots"
    return Case(name, residency.begin_step, lambda: _difference(residency, ids), nbytes)


def _hits(slots: int, tokens: int) -> Case:
    """One layer, the same experts at each call."""
    residency, ids = _filled(slots), _random_ids(tokens)
    return Case(
        f"residency layer of hits M={tokens} {slots} slots",
        lambda: residency_route(ids[0], 0, residency.tables),
        lambda: _difference(residency, ids),
        4.0 * 4 * EXPERTS,
    )


def _steps(slots: int, tokens: int, drifting: int) -> Case:
    """A step of all layers, and two launches that let `drifting` of each token's experts be others
    than in the step before."""
    residency, ids = _filled(slots), _random_ids(tokens)
    drift = torch.zeros_like(ids)
    drift[..., :drifting] = 1

    def run() -> None:
        ids.add_(drift).remainder_(EXPERTS)
        _step(residency, ids)

    def check() -> float:
        run()
        wrong = _difference(residency, ids)
        before = residency.tables.counters[TOTAL].clone()
        for _ in range(20):
            run()
        missed = residency.tables.counters[TOTAL] - before
        print(f"{int(missed[MISSES]) / 20 / LAYERS:.1f} misses a layer:", end=" ")
        return wrong

    name = f"residency step of {LAYERS} layers M={tokens} {slots} slots"
    return Case(name, run, check, 4.0 * (3 * slots + (9 + 3 * len(HALF_LIVES)) * LAYERS * EXPERTS))


def cases() -> Iterator[Case]:
    for slots in (LAYERS * EXPERTS, LAYERS * EXPERTS * 37 // 100):
        yield _begin(slots)
        for tokens in (1, 8):
            yield _hits(slots, tokens)
    for tokens in (1, 8):
        for share in (37, 11):
            yield _steps(LAYERS * EXPERTS * share // 100, tokens, 2)
