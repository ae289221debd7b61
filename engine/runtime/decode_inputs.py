"""What a captured step reads: written by the host into one pinned buffer, and fetched from there by
a copy that is the graph's own. Page tables stay on the device: only what changed is sent.
"""

from __future__ import annotations

from weakref import ReferenceType, ref

import numpy as np
import torch
from torch import Tensor

from engine.kernels.sampling import COLUMNS
from engine.layers.step import DecodeRows
from engine.runtime.sampling_row import SamplingRow
from engine.scheduler.sequence import Plan, Sequence

_NUMBERS = 4
"""Tokens, positions, lengths, rows of the state pool: int64 [most] each. The float64 parameters
[most, COLUMNS] follow."""


class DecodeInputs:
    """Of steps of up to `most` sequences with up to `pages` pages each."""

    def __init__(self, most: int, pages: int, device: torch.device) -> None:
        cells = (_NUMBERS + len(COLUMNS)) * most
        self._most = most
        self._held = torch.zeros(cells, dtype=torch.int64, device=device)
        pinned = device.type == "cuda"
        self._written = torch.zeros(cells, dtype=torch.int64, pin_memory=pinned)
        numbers = self._written.numpy()
        self._numbers = numbers[: _NUMBERS * most].reshape(_NUMBERS, most)
        self._parameters = numbers[_NUMBERS * most :].view(np.float64).reshape(most, len(COLUMNS))
        self._pages = torch.zeros((most, pages), dtype=torch.int32, device=device)
        self._tables = [_Table(row) for row in self._pages]
        # Until a step is written: sequences of one token in page 0 and in row 0 of the states.
        self._numbers[2] = 1

    def rows(self, count: int) -> DecodeRows:
        """Of a step of so many sequences, as last fetched."""
        numbers = self._held[: _NUMBERS * self._most].view(_NUMBERS, self._most)
        tokens, positions, lengths, states = numbers[:, :count]
        return DecodeRows(tokens, positions, lengths, states, self._pages[:count])

    def parameters(self, count: int) -> Tensor:
        """float64 [count, COLUMNS], as `sample_rows` takes them and as last fetched."""
        parameters = self._held[_NUMBERS * self._most :].view(torch.float64)
        return parameters.view(self._most, len(COLUMNS))[:count]

    def fetch(self) -> None:
        """Have on the device what was written: nothing may be written over it before that."""
        self._held.copy_(self._written, non_blocking=True)

    def write(self, plan: Plan, rows: list[SamplingRow]) -> None:
        """The next token of each of a plan's sequences, and how the one after it is sampled."""
        numbers, parameters = self._numbers, self._parameters
        for row, (piece, own) in enumerate(zip(plan.pieces, rows, strict=True)):
            sequence, place, sampling = piece.sequence, piece.start, own.sampling
            numbers[:, row] = sequence.tokens[place], place, place + 1, sequence.row
            filters = sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p
            parameters[row] = *filters, own.draw()
            self._tables[row].update(sequence)


class _Table:
    """What one row of the page tables holds."""

    def __init__(self, row: Tensor) -> None:
        self._row = row
        self._sequence: ReferenceType[Sequence] | None = None
        self._preemptions = 0
        self._count = 0

    def update(self, sequence: Sequence) -> None:
        """Pages are only ever appended, except by a preemption, which starts over."""
        known = self._sequence is not None and self._sequence() is sequence
        if not known or self._preemptions != sequence.preemptions:
            self._sequence, self._preemptions = ref(sequence), sequence.preemptions
            self._count = 0
        count = len(sequence.pages)
        if count > self._count:
            new = torch.tensor(sequence.pages[self._count :], dtype=torch.int32)
            self._row[self._count : count] = new
            self._count = count
