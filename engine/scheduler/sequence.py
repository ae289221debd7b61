"""One request while it lives: its tokens, how many of them are computed, and what it holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

SOLITARY_AFTER = 3
"""Failed shared steps after which a sequence is solitary: it shares no step until forgiven."""
FORGIVEN_AFTER = 32
"""Tokens beyond the furthest fault after which a sequence's failed steps are forgotten. Twice as
many each time that it was solitary, so that where sharing itself is what fails, the repetitions
from position 0 stay few."""


class State(Enum):
    """waiting -> prefilling -> decoding -> finished; preemption leads back to waiting."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    FINISHED = "finished"


@dataclass(eq=False, slots=True, weakref_slot=True)
class Sequence:
    """A request's progress. Owned by the scheduler; others read it.

    Positions `[0, computed)` of `tokens` are in KV pages and in the recurrent state. Positions up
    to `prefill_end` are computed in chunks, later ones one at a time, so that computing a sequence
    again from position 0 cuts it at the same places. Its neighbours may be others then, and dense
    products of another height round otherwise (see `Chunk boundaries` in docs/architecture.md).
    """

    request: int
    arrival: int
    """Order of submission: smaller is older."""
    prompt_tokens: int
    tokens: list[int]
    """The prompt, then what was sampled."""
    max_tokens: int
    """Most tokens to sample; already clipped to what context and KV pages can hold."""
    stop_tokens: frozenset[int]
    prefill_end: int
    state: State = State.WAITING
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    row: int = -1
    """Row of the recurrent state pool, -1 while waiting."""
    held: bool = False
    """Waits for something of its own, its grammar: others are admitted before it."""
    started: bool = False
    """Was admitted once; a preempted sequence is not announced a second time."""
    preemptions: int = 0
    suspect_at: int | None = None
    """A step over this position failed: the next step over it holds this sequence alone."""
    failed_steps: int = 0
    """Shared steps that failed with this sequence in them, since it was last forgiven."""
    failed_at: int = -1
    """Furthest position of them."""
    forgiven_after: int = FORGIVEN_AFTER
    lone_turn: int = 0
    """When this sequence, being solitary, last had a step: solitary ones take turns."""

    @property
    def completion_tokens(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    @property
    def running(self) -> bool:
        return self.state in (State.PREFILLING, State.DECODING)

    def next_length(self, chunk_tokens: int) -> int:
        """Tokens that this sequence's next step computes: a chunk of its prefill, or one."""
        if self.computed < self.prefill_end:
            return min(chunk_tokens, self.prefill_end - self.computed)
        return 1

    @property
    def solitary(self) -> bool:
        """Was in so many failed steps that it computes by itself, by turns with the others.

        Should sharing itself be what fails, starting again from position 0 each time would never
        come to an end.
        """
        return self.failed_steps >= SOLITARY_AFTER

    def crosses_fault(self, chunk_tokens: int) -> bool:
        """Whether the next step would cross a position at which a shared step failed."""
        if self.suspect_at is None:
            return False
        return self.suspect_at < self.computed + self.next_length(chunk_tokens)

    def blame(self, position: int) -> None:
        """A shared step over `position` failed."""
        self.failed_steps += 1
        self.failed_at = max(self.failed_at, position)

    def forgive(self) -> None:
        """Forget failed steps once enough has been computed beyond them."""
        if self.failed_steps and self.computed > self.failed_at + self.forgiven_after:
            if self.solitary:
                self.forgiven_after *= 2
            self.failed_steps = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """One sequence's share of a step: tokens at positions `start : start + length`."""

    sequence: Sequence
    start: int
    length: int
    samples: bool
    """Whether the step ends at the sequence's last token, so that its logits give the next one."""
    prefill: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """What one step computes. Decodes come first, then prefill chunks, both oldest first."""

    pieces: tuple[Piece, ...]

    @property
    def prefill_tokens(self) -> int:
        return sum(piece.length for piece in self.pieces if piece.prefill)

    @property
    def decode_sequences(self) -> int:
        return sum(not piece.prefill for piece in self.pieces)
