"""The runtime's own steps over tokens that are given: their logits, and captured ones beside plain.

The plans are those that the scheduler would make of one request, or of several that decode; what
computes them is the StepRunner of an engine.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.context.allocator import PageAllocator
from engine.experts.runtime import ExpertRuntime
from engine.messages import Sampling
from engine.runtime.accounting import close_books
from engine.runtime.debug import DebugFaults
from engine.runtime.execution import Request, StepRunner
from engine.runtime.parts import Parts
from engine.runtime.sampling_row import SamplingRow
from engine.runtime.verify_text import Text
from engine.scheduler.sequence import Piece, Plan, Sequence


@dataclass(frozen=True)
class Forced:
    """What a text came to."""

    logits: Tensor
    """float32 [D + 1, vocab] in host memory: after the prompt and after each of the D others."""
    captured: int
    """Of the D decode steps, captured graphs."""
    streamed: int
    """Steps whose experts were streamed."""


@dataclass(frozen=True)
class Replayed:
    steps: int
    captured: int
    mismatched: int
    """Steps whose logits or states were not those of a plain one, to the bit."""


class Steps:
    """Of loaded parts, which nobody else uses."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._product = StepRunner(parts, DebugFaults())
        close_books(parts, self._product.graph_bytes)
        self._plain = StepRunner(parts, DebugFaults(), captures=False)
        self._streaming = StepRunner(parts, DebugFaults(stream="always"), captures=False)
        self._pages = PageAllocator(parts.kv.pages)
        greedy = SamplingRow(
            Sampling(temperature=0.0), [], parts.limits.vocab_size, parts.device.torch
        )
        self._requests = {
            number: Request(greedy, logprobs=-1, submitted=0.0)
            for number in range(parts.limits.max_sequences)
        }

    def force(
        self,
        text: Text,
        *,
        captured: bool = True,
        streamed: bool = False,
        between: Callable[[], None] | None = None,
    ) -> Forced:
        """The prompt in chunks, then its other tokens one by one, each in a step of its own.

        Captured where the device does so, unless not `captured`; `streamed`: the prompt's experts
        come through the ring whatever is predicted; `between` is called before every step.
        """
        sequence = self._sequence(0, text.tokens, text.prompt)
        decode = self._product if captured else self._plain
        replays, streams = decode.replays, self._streamed_steps
        rows = [self._prefill(sequence, self._streaming if streamed else None, between)]
        for place in range(text.prompt, len(text.tokens)):
            if between is not None:
                between()
            piece = Piece(sequence, place, 1, samples=True, prefill=False)
            rows.append(decode.logits(Plan((piece,)), self._requests).cpu())
        self._pages.free(sequence.pages)
        return Forced(torch.cat(rows), decode.replays - replays, self._streamed_steps - streams)

    def replay(self, count: int, seed: int) -> Replayed:
        """Steps of one to all sequences with random tokens at random places, so with random routes:
        each as the runtime computes it and plain, by turns one or the other first, since the second
        finds the experts of the first in slots."""
        draw, limits = random.Random(seed), self.parts.limits
        pages = self.parts.kv.pages // limits.max_sequences
        context = min(pages * self.parts.kv.page_tokens, limits.context_tokens)
        sequences = []
        for number in range(limits.max_sequences):
            tokens = [draw.randrange(limits.vocab_size) for _ in range(context)]
            sequences.append(self._sequence(number, tokens, context))
            self._prefill(sequences[-1])
        before, wrong = self._product.replays, 0
        for turn in range(count):
            pieces = []
            for sequence in draw.sample(sequences, draw.randint(1, len(sequences))):
                place = draw.randrange(1, context)
                sequence.tokens[place] = draw.randrange(limits.vocab_size)
                pieces.append(Piece(sequence, place, 1, samples=True, prefill=False))
            order = [self._product, self._plain]
            wrong += not self._agree(Plan(tuple(pieces)), order if turn % 2 else order[::-1])
        for sequence in sequences:
            self._pages.free(sequence.pages)
        return Replayed(count, self._product.replays - before, wrong)

    def close(self) -> None:
        for runner in (self._product, self._plain, self._streaming):
            runner.close()
        if self.parts.experts is not None:
            self.parts.experts.close()

    @property
    def _streamed_steps(self) -> int:
        return self.parts.experts.streamed_steps if self.parts.experts is not None else 0

    def _sequence(self, number: int, tokens: list[int], prompt: int) -> Sequence:
        return Sequence(
            request=number,
            arrival=number,
            prompt_tokens=prompt,
            tokens=list(tokens),
            max_tokens=len(tokens) - prompt,
            stop_tokens=frozenset(),
            prefill_end=prompt,
            pages=self._pages.allocate(self.parts.kv.pages_for(len(tokens))),
            row=number,
        )

    def _prefill(
        self,
        sequence: Sequence,
        runner: StepRunner | None = None,
        between: Callable[[], None] | None = None,
    ) -> Tensor:
        """float32 [1, vocab] after the prompt, in host memory."""
        end, chunk = sequence.prompt_tokens, self.parts.limits.chunk_tokens
        logits = torch.empty(0)
        for start in range(0, end, chunk):
            if between is not None:
                between()
            length = min(chunk, end - start)
            piece = Piece(sequence, start, length, samples=start + length == end, prefill=True)
            logits = (runner or self._product).logits(Plan((piece,)), self._requests)
        return logits.cpu()

    def _agree(self, plan: Plan, runners: list[StepRunner]) -> bool:
        """Whether both give the same logits and states from the same ones. Keys and values of the
        step's tokens are written anew by each."""
        states = self.parts.states
        begin: dict[int, Tensor] = {}
        if states is not None:
            begin = {p.sequence.row: states.snapshot(p.sequence.row) for p in plan.pieces}
        found: list[list[Tensor]] = []
        for runner in runners:
            if states is not None:
                for row, snapshot in begin.items():
                    states.restore(row, snapshot)
            found.append([runner.logits(plan, self._requests).clone()])
            if states is not None:
                found[-1] += [states.snapshot(row) for row in begin]
        return all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def evict(experts: ExpertRuntime, draw: random.Random, most: int) -> None:
    """Forget up to `most` experts of each pool, drawn from those in slots. Only between steps."""
    for (_, residency), complete in zip(experts.pools, experts.complete, strict=True):
        if complete:
            continue  # nothing is ever filled there
        owners = residency.tables.owner.cpu()
        held = owners[owners >= 0].tolist()
        for owner in draw.sample(held, min(most, len(held))):
            residency.release(*divmod(owner, residency.experts))
