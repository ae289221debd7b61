"""Captured steps: one token of each of a few sequences, sampled too, as one launch.

A graph for each number of sequences reads the same tensors: numbers that are copied in before every
replay, and page tables, of which only what changed is written. Whatever a step does (routing, fills
and counters among it) is in the graph, so the host has nothing to do between layers.
"""

from __future__ import annotations

from collections import Counter
from weakref import ReferenceType, ref

import torch
from torch import Tensor

from engine.kernels.sampling import COLUMNS, sample_rows
from engine.layers.step import DecodeRows
from engine.runtime.parts import Parts
from engine.runtime.sampling_row import SamplingRow
from engine.scheduler.sequence import Plan, Sequence

MOST_SEQUENCES = 8
"""Steps of more are computed layer by layer."""


class DecodeGraphs:
    @torch.inference_mode()
    def __init__(self, parts: Parts) -> None:
        """Captures steps of 1, 2, ... sequences. Page 0 and row 0 of the states are written to:
        nobody may hold them yet."""
        self._parts = parts
        self.most = min(MOST_SEQUENCES, parts.limits.max_sequences)
        device = parts.device.torch
        pages = parts.kv.pages_for(parts.limits.request_tokens)
        self._numbers = torch.zeros((4, self.most), dtype=torch.int64, device=device)
        """Tokens, positions, lengths, rows of the state pool."""
        self._written = torch.zeros((4, self.most), dtype=torch.int64, pin_memory=True)
        self._parameters = torch.zeros(
            (self.most, len(COLUMNS)), dtype=torch.float64, device=device
        )
        self._parameters_written = torch.zeros(
            (self.most, len(COLUMNS)), dtype=torch.float64, pin_memory=True
        )
        self._tokens = torch.zeros(self.most, dtype=torch.int64, pin_memory=True)
        self._pages = torch.zeros((self.most, pages), dtype=torch.int32, device=device)
        self._tables = [_Table() for _ in range(self.most)]
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self.replays: Counter[int] = Counter()
        """Steps so far by their number of sequences."""
        pool = None
        # The largest first: others find room in its memory.
        for count in range(self.most, 0, -1):
            if self._waits(count):
                continue
            self._numbers[:, :count].copy_(torch.tensor([[0], [0], [1], [0]]).expand(4, count))
            self._compute(count)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                logits = self._compute(count)
            pool = graph.pool()
            self._graphs[count] = graph, logits
        torch.cuda.synchronize(device)

    def _waits(self, count: int) -> bool:
        """Whether some layer would read back what it routes."""
        experts = self._parts.experts
        if experts is None:
            return False
        plans = experts.store.plans
        return not all(experts.never_waits(p.layer, count * self._parts.top_k) for p in plans)

    def _compute(self, count: int) -> Tensor:
        parts = self._parts
        tokens, positions, lengths, states = self._numbers[:, :count]
        rows = DecodeRows(tokens, positions, lengths, states, self._pages[:count])
        if parts.experts is not None:
            parts.experts.begin_step()
        logits = parts.model.decode(rows, parts.kv, parts.states)
        if parts.experts is not None:
            parts.experts.end_step()
        sample_rows(logits, self._parameters[:count], finite=True, out=self._tokens[:count])
        return logits

    def hold(self, plan: Plan) -> bool:
        """Whether there is a graph for this step."""
        pieces = plan.pieces
        count = len(pieces)
        return (
            count in self._graphs
            and all(piece.length == 1 and piece.start > 0 and piece.samples for piece in pieces)
            and not self._waits(count)
        )

    def run(self, plan: Plan, rows: list[SamplingRow]) -> tuple[Tensor, list[int]]:
        """Logits [S, vocab] of the plan's sequences, valid until the next run, and their
        tokens by each row's parameters alone: NOT_FINITE, or UNSETTLED, if there is none."""
        count = len(plan.pieces)
        numbers, parameters = self._written.numpy(), self._parameters_written.numpy()
        for row, piece in enumerate(plan.pieces):
            sequence, place = piece.sequence, piece.start
            numbers[:, row] = sequence.tokens[place], place, place + 1, sequence.row
            sampling = rows[row].sampling
            filters = sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p
            parameters[row] = *filters, rows[row].draw()
            self._tables[row].update(self._pages[row], sequence)
        self._numbers.copy_(self._written, non_blocking=True)
        self._parameters.copy_(self._parameters_written, non_blocking=True)
        graph, logits = self._graphs[count]
        graph.replay()
        self.replays[count] += 1
        torch.cuda.synchronize(logits.device)
        return logits, self._tokens[:count].tolist()


class _Table:
    """What one row of the page tables holds."""

    def __init__(self) -> None:
        self._sequence: ReferenceType[Sequence] | None = None
        self._preemptions = 0
        self._count = 0

    def update(self, row: Tensor, sequence: Sequence) -> None:
        """Pages are only ever appended, except by a preemption, which starts over."""
        known = self._sequence is not None and self._sequence() is sequence
        if not known or self._preemptions != sequence.preemptions:
            self._sequence, self._preemptions = ref(sequence), sequence.preemptions
            self._count = 0
        pages = sequence.pages[self._count :]
        if pages:
            end = self._count + len(pages)
            row[self._count : end] = torch.tensor(pages, dtype=torch.int32)
            self._count = end
