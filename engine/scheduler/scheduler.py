"""Decides what each step computes. Knows requests, pages and rows; knows no tensor and no model.

Every method is called at a safe point, between two steps, by the one engine thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.errors import InvalidRequest, Overloaded
from engine.messages import Submit
from engine.scheduler.limits import Limits
from engine.scheduler.resources import PageManager, RowManager
from engine.scheduler.sequence import Piece, Plan, Sequence, State
from engine.scheduler.waiting import WaitingQueue


@dataclass(frozen=True, slots=True)
class Ending:
    """How a sequence ended by itself."""

    reason: Literal["stop", "length"]
    stop_token: int | None = None


class Scheduler:
    """Continuous batching, first come, first served.

    Prompts are computed in chunks, and every running decode rides along in a chunk's step. A
    sequence's chunk boundaries follow from its own length alone, never from its neighbours. When
    pages run out the newest running sequence gives up its own and is computed again later; what
    it has sampled is kept.
    """

    def __init__(self, limits: Limits, pages: PageManager) -> None:
        self.limits = limits
        self.pages = pages
        self.rows = RowManager(limits.max_sequences)
        self.waiting = WaitingQueue()
        self.running: list[Sequence] = []
        """Ordered by arrival."""
        self.preemptions = 0
        self._live: dict[int, Sequence] = {}
        self._arrivals = 0
        self._lone_turns = 0
        self._lone_is_next = True

    @property
    def has_work(self) -> bool:
        return bool(self._live)

    def find(self, request: int) -> Sequence | None:
        return self._live.get(request)

    @property
    def live(self) -> tuple[Sequence, ...]:
        return tuple(self._live.values())

    # --- requests come and go ----------------------------------------------------------------

    def submit(self, submit: Submit) -> Sequence:
        """Queue a request. Raises InvalidRequest, ContextLengthExceeded or Overloaded.

        One with a grammar is held until `release`.
        """
        if submit.request in self._live:
            raise InvalidRequest(f"Request {submit.request} is live already.", param="request")
        max_tokens = self.limits.clip(submit)
        seats = self.limits.max_sequences - len(self.running)
        if len(self.waiting) >= self.limits.max_waiting + seats:
            raise Overloaded(
                f"{len(self.waiting)} requests wait; the limit is {self.limits.max_waiting}.",
                hint="Try again in a moment.",
            )
        sequence = Sequence(
            request=submit.request,
            arrival=self._arrivals,
            prompt_tokens=len(submit.tokens),
            tokens=list(submit.tokens),
            max_tokens=max_tokens,
            stop_tokens=frozenset(submit.stop_tokens),
            prefill_end=len(submit.tokens),
            held=submit.compiles,
        )
        self._arrivals += 1
        self._live[sequence.request] = sequence
        self.waiting.enter(sequence)
        return sequence

    def release(self, sequence: Sequence) -> None:
        """A held sequence may run, as if it had come only now."""
        self.waiting.leave(sequence)
        sequence.held = False
        sequence.arrival = self._arrivals
        self._arrivals += 1
        self.waiting.enter(sequence)

    def end(self, request: int) -> Sequence | None:
        """Remove a request, whatever it is doing; None if it has ended already."""
        sequence = self._live.get(request)
        if sequence is not None:
            self._finish(sequence)
        return sequence

    def stop_at(self, request: int, keep: int) -> Sequence | None:
        """End a request after `keep` sampled tokens; later ones leave it and its pages."""
        sequence = self._live.get(request)
        if sequence is None:
            return None
        keep = max(0, min(keep, sequence.completion_tokens))
        del sequence.tokens[sequence.prompt_tokens + keep :]
        sequence.computed = min(sequence.computed, len(sequence.tokens))
        self.pages.trim(sequence, len(sequence.tokens))
        self._finish(sequence)
        return sequence

    # --- one step ----------------------------------------------------------------------------

    def admit(self) -> list[Sequence]:
        """Let waiting sequences run while seats and pages allow; returns those that are new."""
        announced = []
        while (head := self.waiting.head) is not None and self._has_room(head):
            self.waiting.leave(head)
            self.pages.grow(head, len(head.tokens))
            self.rows.take(head)
            head.state = State.PREFILLING
            # The newest of those that run: only the newest is ever preempted, and older ones that
            # wait go first.
            self.running.append(head)
            if not head.started:
                head.started = True
                announced.append(head)
        return announced

    def plan(self) -> Plan | None:
        """The next step, with pages secured for it. None when nothing runs."""
        repeat = self._plan_repeat()
        if repeat is not None:
            return repeat
        if self._lone_is_next:
            return self._plan_solitary() or self._plan_shared()
        return self._plan_shared() or self._plan_solitary()

    def advance(self, piece: Piece, token: int | None) -> Ending | None:
        """Record that a piece was computed and, where it samples, the token that it gave."""
        sequence = piece.sequence
        sequence.computed = piece.start + piece.length
        if sequence.suspect_at is not None and sequence.computed > sequence.suspect_at:
            sequence.suspect_at = None
        sequence.forgive()
        if sequence.computed >= sequence.prefill_end:
            sequence.state = State.DECODING
        if not piece.samples:
            return None
        if token is None:
            raise ValueError(f"the step of request {sequence.request} samples, but gave no token")
        if token in sequence.stop_tokens:
            self._finish(sequence)
            return Ending("stop", token)
        sequence.tokens.append(token)
        if sequence.completion_tokens >= sequence.max_tokens:
            self._finish(sequence)
            return Ending("length")
        return None

    def suspect(self, plan: Plan, *, recompute: bool) -> None:
        """A step failed as a whole: its members will each repeat it alone.

        With `recompute` the members' recurrent state is spoilt (a layer may have moved it before
        the failure), so they start again at position 0, cut at the same places as the first time.
        """
        for piece in plan.pieces:
            sequence = piece.sequence
            sequence.suspect_at = piece.start + piece.length - 1
            if len(plan.pieces) > 1:
                sequence.blame(sequence.suspect_at)
            if recompute:
                sequence.computed = 0
                sequence.state = State.PREFILLING

    # --- inside ------------------------------------------------------------------------------

    def _has_room(self, sequence: Sequence) -> bool:
        if not self.rows.available:
            return False
        # Each running sequence may want its next page soon; without this much headroom the
        # newcomer would be preempted at once and its prefill be wasted.
        headroom = len(self.running)
        needed = self.pages.count_for(len(sequence.tokens)) + headroom
        return needed <= self.pages.available

    def _plan_repeat(self) -> Plan | None:
        """One member of a failed step, over the place where it failed. Each has one such step."""
        for sequence in list(self.running):
            if not sequence.solitary and sequence.crosses_fault(self.limits.chunk_tokens):
                plan = self._plan_alone(sequence)
                if plan is not None:
                    return plan
        return None

    def _plan_solitary(self) -> Plan | None:
        """A step of the solitary sequence that has waited longest for one."""
        solitary = [sequence for sequence in self.running if sequence.solitary]
        for sequence in sorted(solitary, key=lambda each: each.lone_turn):
            plan = self._plan_alone(sequence)
            if plan is not None:
                self._lone_turns += 1
                sequence.lone_turn = self._lone_turns
                self._lone_is_next = False
                return plan
        return None

    def _plan_alone(self, sequence: Sequence) -> Plan | None:
        if not sequence.running:
            return None
        piece = self._piece(sequence)
        return Plan((piece,)) if self._secure(sequence, piece) else None

    def _plan_shared(self) -> Plan | None:
        """A step of all that are not solitary."""
        pieces = self._plan_decodes()
        pieces += self._plan_prefill()
        if not pieces:
            return None
        self._lone_is_next = True
        return Plan(tuple(pieces))

    def _plan_decodes(self) -> list[Piece]:
        pieces = []
        for sequence in list(self.running):
            if sequence.state is State.DECODING and not sequence.solitary:
                piece = self._piece(sequence)
                if self._secure(sequence, piece):
                    pieces.append(piece)
        return pieces

    def _plan_prefill(self) -> list[Piece]:
        pieces = []
        room = self.limits.chunk_tokens
        for sequence in self.running:
            if sequence.state is not State.PREFILLING or sequence.solitary:
                continue
            piece = self._piece(sequence)
            # A chunk is never cut to fill the step: where it ends is the sequence's own affair.
            if piece.length > room:
                break
            pieces.append(piece)
            room -= piece.length
        return pieces

    def _piece(self, sequence: Sequence) -> Piece:
        length = sequence.next_length(self.limits.chunk_tokens)
        end = sequence.computed + length
        return Piece(
            sequence=sequence,
            start=sequence.computed,
            length=length,
            samples=end == len(sequence.tokens),
            prefill=sequence.state is State.PREFILLING,
        )

    def _secure(self, sequence: Sequence, piece: Piece) -> bool:
        """Pages for a piece, if need be the newest sequence's. False if it is the newest itself."""
        while sequence.running and not self.pages.grow(sequence, piece.start + piece.length):
            self._preempt(self.running[-1])
        return sequence.running

    def _preempt(self, sequence: Sequence) -> None:
        self._release(sequence)
        sequence.state = State.WAITING
        sequence.computed = 0
        sequence.prefill_end = len(sequence.tokens)
        sequence.preemptions += 1
        self.preemptions += 1
        self.waiting.enter(sequence)

    def _finish(self, sequence: Sequence) -> None:
        if sequence.state is State.WAITING:
            self.waiting.leave(sequence)
        else:
            self._release(sequence)
        sequence.state = State.FINISHED
        del self._live[sequence.request]

    def _release(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.pages.trim(sequence, 0)
        self.rows.give(sequence)
