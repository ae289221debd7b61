"""Captured steps: one token of each of a few sequences, sampled too, as one launch.

A graph for each number of sequences reads the same tensors (engine.runtime.decode_inputs). Whatever
a step does (routing, fills and counters among it) is in the graph, so the host has nothing to do
between layers.
"""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

from engine.kernels.sampling import sample_rows
from engine.runtime.decode_inputs import DecodeInputs
from engine.runtime.parts import Parts
from engine.runtime.sampling_row import SamplingRow
from engine.scheduler.sequence import Plan

MOST_SEQUENCES = 8
"""Steps of more are computed layer by layer."""


class DecodeGraphs:
    @torch.inference_mode()
    def __init__(self, parts: Parts) -> None:
        """Captures steps of 1, 2, ... sequences. Page 0 and row 0 of the states are written to:
        nobody may hold them yet."""
        self._parts = parts
        self._device = parts.device.torch
        self.most = min(MOST_SEQUENCES, parts.limits.max_sequences)
        pages = parts.kv.pages_for(parts.limits.request_tokens)
        self._inputs = DecodeInputs(self.most, pages, self._device)
        self._tokens = torch.zeros(self.most, dtype=torch.int64, pin_memory=True)
        self._sampled = self._tokens.numpy()
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self.replays: Counter[int] = Counter()
        """Steps so far by their number of sequences."""
        self._capture(warm=True)

    def _capture(self, *, warm: bool) -> None:
        """`warm`: compute each step once before, which compiles kernels and writes to memory."""
        device, experts = self._device, self._parts.experts
        self._complete = experts.complete if experts is not None else ()
        self._due = False
        self._graphs.clear()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved(device)
        pool = None
        # The largest first: others find room in its memory.
        for count in range(self.most, 0, -1):
            if self._waits(count):
                continue
            if warm:
                self._compute(count)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                logits = self._compute(count)
            pool = graph.pool()
            self._graphs[count] = graph, logits
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        self.nbytes = max(0, torch.cuda.memory_reserved(device) - before)
        """Of torch's memory, the graphs' pool."""

    def _waits(self, count: int) -> bool:
        """Whether some layer would read back what it routes."""
        experts = self._parts.experts
        return experts is not None and not experts.step_never_waits(count * self._parts.top_k)

    def _compute(self, count: int) -> Tensor:
        parts = self._parts
        self._inputs.fetch()
        if parts.experts is not None:
            parts.experts.begin_step()
        logits = parts.model.decode(self._inputs.rows(count), parts.kv, parts.states)
        if parts.experts is not None:
            parts.experts.end_step()
        parameters = self._inputs.parameters(count)
        sample_rows(logits, parameters, finite=True, out=self._tokens[:count])
        return logits

    def hold(self, plan: Plan) -> bool:
        """Whether there is a graph for this step."""
        experts = self._parts.experts
        if experts is not None and experts.complete != self._complete:
            # A graph of a pool with every expert in it fills no slots. This step compiles whatever
            # the next graphs need.
            self._complete, self._due = experts.complete, True
            return False
        if self._due:
            self._capture(warm=False)
        count = len(plan.pieces)
        return (
            count in self._graphs
            and all(p.length == 1 and p.start > 0 and p.samples for p in plan.pieces)
            and not self._waits(count)
        )

    def run(self, plan: Plan, rows: list[SamplingRow]) -> tuple[Tensor, list[int]]:
        """Logits [S, vocab] of the plan's sequences, valid until the next run, and their tokens by
        each row's parameters alone: NOT_FINITE, or UNSETTLED, if there is none."""
        count = len(plan.pieces)
        self._inputs.write(plan, rows)
        graph, logits = self._graphs[count]
        graph.replay()
        self.replays[count] += 1
        torch.cuda.synchronize(self._device)
        return logits, self._sampled[:count].tolist()
