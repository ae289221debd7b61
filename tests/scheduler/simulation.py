"""A model made of arithmetic, to drive the scheduler: it can only answer right from right pages.

Its KV memory is a dictionary of physical slots. A step writes the piece's tokens there and reads
the whole context back through the sequence's page table; a second, recurrent memory has a row for
each running sequence. The next token is a hash of what was read.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from engine.context.allocator import PageAllocator
from engine.messages import Submit
from engine.scheduler.integrity import check
from engine.scheduler.limits import Limits
from engine.scheduler.resources import PageManager
from engine.scheduler.scheduler import Ending, Scheduler
from engine.scheduler.sequence import Piece, Plan, Sequence

VOCAB = 50


def next_token(tokens: Many[int]) -> int:
    """The model: 32-bit hash of all tokens so far."""
    return zlib.crc32(bytes(tokens)) % VOCAB


def alone(submit: Submit, max_tokens: int) -> list[int]:
    """What a request must give, whatever runs beside it. `max_tokens` as clipped."""
    tokens = list(submit.tokens)
    while len(tokens) - len(submit.tokens) < max_tokens:
        token = next_token(tokens)
        if token in submit.stop_tokens:
            break
        tokens.append(token)
    return tokens[len(submit.tokens) :]


@dataclass
class Simulation:
    limits: Limits
    page_tokens: int = 4
    pages: int = 8
    memory: dict[int, int] = field(default_factory=dict)
    rows: dict[int, int] = field(default_factory=dict)
    admitted: list[int] = field(default_factory=list)
    endings: dict[int, Ending] = field(default_factory=dict)
    outputs: dict[int, list[int]] = field(default_factory=dict)
    plans: list[Plan] = field(default_factory=list)
    shapes: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    failures: dict[int, int] = field(default_factory=dict)
    """Request to position: a step that computes this position of this request fails."""
    failed: list[int] = field(default_factory=list)
    sharing_fails: bool = False
    """Every step of more than one member fails."""
    fails_shared: Callable[[], bool] | None = None
    """Asked about each shared step: whether it fails."""

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(
            self.limits, PageManager(PageAllocator(self.pages), self.page_tokens)
        )

    def submit(self, submit: Submit) -> Sequence:
        sequence = self.scheduler.submit(submit)
        self.outputs[submit.request] = []
        return sequence

    def step(self) -> Plan | None:
        self.admitted += [sequence.request for sequence in self.scheduler.admit()]
        plan = self.scheduler.plan()
        check(self.scheduler)
        if plan is None:
            return None
        self.plans.append(plan)
        if self._sharing_fails(plan) or any(self._fails(piece) for piece in plan.pieces):
            self._fail(plan)
        else:
            for piece in plan.pieces:
                self._compute(piece)
        check(self.scheduler)
        return plan

    def run(self, most: int = 2000) -> None:
        for _ in range(most):
            if not self.scheduler.has_work:
                return
            self.step()
        raise AssertionError(f"still working after {most} steps")

    def _sharing_fails(self, plan: Plan) -> bool:
        if len(plan.pieces) == 1:
            return False
        return self.sharing_fails or (self.fails_shared is not None and self.fails_shared())

    def _fails(self, piece: Piece) -> bool:
        position = self.failures.get(piece.sequence.request, -1)
        return piece.start <= position < piece.start + piece.length

    def _fail(self, plan: Plan) -> None:
        for piece in plan.pieces:
            # The worst case: every member's state moved before the step broke.
            self.rows[piece.sequence.row] = -1
        if len(plan.pieces) == 1:
            request = plan.pieces[0].sequence.request
            self.scheduler.end(request)
            self.failed.append(request)
        else:
            self.scheduler.suspect(plan, recompute=True)

    def _compute(self, piece: Piece) -> None:
        sequence = piece.sequence
        self.shapes.setdefault(sequence.request, []).append((piece.start, piece.length))
        end = piece.start + piece.length
        for position in range(piece.start, end):
            self.memory[self._slot(sequence, position)] = sequence.tokens[position]
        context = [self.memory[self._slot(sequence, position)] for position in range(end)]
        assert context == sequence.tokens[:end], "the pages hold something else"
        state = 0 if piece.start == 0 else self.rows[sequence.row]
        for position in range(piece.start, end):
            state = zlib.crc32(bytes([sequence.tokens[position]]), state)
        self.rows[sequence.row] = state
        assert state == zlib.crc32(bytes(context)), "the state row belongs to another history"
        assert piece.samples == (end == len(sequence.tokens))
        token = state % VOCAB if piece.samples else None
        ending = self.scheduler.advance(piece, token)
        self.outputs[sequence.request] = sequence.tokens[sequence.prompt_tokens :]
        if ending is not None:
            assert sequence.request not in self.endings, "ended twice"
            self.endings[sequence.request] = ending

    def _slot(self, sequence: Sequence, position: int) -> int:
        page = sequence.pages[position // self.page_tokens]
        return page * self.page_tokens + position % self.page_tokens
