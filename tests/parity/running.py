"""Run sequences through the engine's model, in any chunks and any company."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from engine.context.allocator import PageAllocator
from engine.context.batch import Batch, SequenceSlice
from engine.context.kv import KvPages
from engine.context.states import StatePool
from engine.experts.regime import StreamMode
from engine.experts.runtime import ExpertRuntime
from engine.experts.store import plan_layers
from engine.formats.checkpoint import open_checkpoint
from engine.memory.device import resolve_device
from engine.models.registry import build_model, describe, expert_tensors
from engine.options import DeviceName


class Sequence:
    def __init__(self, state: int) -> None:
        self.state = state
        self.context = 0
        self.pages: list[int] = []


class Runner:
    """A loaded model and room for `rows` sequences."""

    def __init__(
        self,
        folder: Path,
        device: DeviceName = "cpu",
        cache_rate: float = 1.0,
        dtype: torch.dtype = torch.float32,
        rows: int = 5,
        *,
        streamed: bool = False,
    ) -> None:
        """`streamed`: absent experts are sent ahead, whenever a sequence has more than a token."""
        checkpoint = open_checkpoint(folder)
        self.spec = describe(checkpoint)
        place = resolve_device(device)
        self.device = place.torch
        source = partial(expert_tensors, self.spec, checkpoint)
        self._streamed = streamed
        self.experts = None
        if self.spec.moe is not None:
            plans = plan_layers(source, self.spec.moe_layers)
            self.experts = ExpertRuntime.load(source, plans, place, cache_rate=cache_rate)
        self.model = build_model(checkpoint, self.spec, place.torch, dtype, self.experts)
        self.kv = KvPages(self.spec, rows * 24, 16, place.torch, dtype)
        self.allocator = PageAllocator(self.kv.pages)
        recurrent = bool(self.spec.recurrent_layers)
        self.states = StatePool(self.spec, rows, place.torch, dtype) if recurrent else None
        if self.states is not None:
            # What an earlier sequence left behind must not matter.
            for layer in self.spec.recurrent_layers:
                for state in self.states.layer(layer):
                    state.fill_(7.0)

    def step(self, *work: tuple[Sequence, Tensor]) -> list[Tensor]:
        """One batch; for each sequence and its next tokens the logits of all of them."""
        slices, start = [], 0
        for sequence, tokens in work:
            end = sequence.context + len(tokens)
            missing = self.kv.pages_for(end) - len(sequence.pages)
            # Taken from the far end by turns, so that no sequence has its pages in order.
            taken = self.allocator.allocate(missing)
            sequence.pages += reversed(taken)
            pages = torch.tensor(sequence.pages, device=self.device)
            slices.append(
                SequenceSlice(start, len(tokens), sequence.context, pages, sequence.state)
            )
            start += len(tokens)
        positions = [torch.arange(s.context, s.context + s.length) for s in slices]
        batch = Batch(
            torch.cat([tokens for _, tokens in work]).to(self.device),
            torch.cat(positions).to(self.device),
            tuple(slices),
            torch.arange(start, device=self.device),
        )
        logits = self._forward(batch)
        for sequence, tokens in work:
            sequence.context += len(tokens)
        return list(logits.split([len(tokens) for _, tokens in work]))

    def _forward(self, batch: Batch) -> Tensor:
        rows, moe = len(batch.tokens), self.spec.moe
        if self.experts is None or moe is None or rows == len(batch.sequences):
            return self.model.forward(batch, self.kv, self.states)
        mode: StreamMode = "always" if self._streamed else "never"
        try:
            self.experts.begin_step(rows * moe.top_k, mode, seeds=True)
            return self.model.forward(batch, self.kv, self.states)
        finally:
            self.experts.end_step()
            self.experts.seed()

    def prefill(self, sequence: Sequence, tokens: Tensor, chunk: int) -> Tensor:
        return torch.cat([self.step((sequence, part))[0] for part in tokens.split(chunk)])

    def decode(self, sequence: Sequence, logits: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """Greedy tokens [steps] after the last of `logits`, and the logits of each of them."""
        tokens, rows = [], []
        for _ in range(steps):
            tokens.append(logits[-1].argmax().reshape(1))
            logits = self.step((sequence, tokens[-1]))[0]
            rows.append(logits)
        return torch.cat(tokens), torch.cat(rows)

    def release(self, sequence: Sequence) -> None:
        self.allocator.free(sequence.pages)
        sequence.pages, sequence.context = [], 0


def in_company(
    runner: Runner, prompts: list[Tensor], chunks: list[int], steps: int
) -> list[tuple[Tensor, Tensor]]:
    """All prompts side by side, then `steps` greedy tokens of each: for each sequence the tokens
    [steps] and the logits [T + steps, vocab] of its prompt and of them.

    Each starts a step later than the one before and is cut into chunks of its own, so that batches
    mix long and short chunks, single tokens, first tokens and late ones, prefills and decodes.
    """
    sequences = [Sequence(len(prompts) - 1 - row) for row in range(len(prompts))]
    left = [list(tokens.split(chunk)) for tokens, chunk in zip(prompts, chunks, strict=True)]
    greedy: list[list[Tensor]] = [[] for _ in prompts]
    logits: list[list[Tensor]] = [[] for _ in prompts]
    turn = 0
    while any(left):
        active = [i for i, pieces in enumerate(left) if pieces and i <= turn]
        parts = runner.step(*((sequences[i], left[i].pop(0)) for i in active))
        for i, part in zip(active, parts, strict=True):
            logits[i].append(part)
            if not left[i] and len(greedy[i]) < steps:
                greedy[i].append(part[-1].argmax().reshape(1).cpu())
                left[i].append(greedy[i][-1])
        turn += 1
    for sequence in sequences:
        runner.release(sequence)
    return [(torch.cat(g), torch.cat(rows)) for g, rows in zip(greedy, logits, strict=True)]


def relative_error(got: Tensor, expected: Tensor) -> float:
    return float((got.double() - expected.double()).norm() / expected.double().norm())
