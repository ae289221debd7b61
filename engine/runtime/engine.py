"""The engine: a loaded model that answers requests, one step at a time, on one thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Literal

from engine.context.allocator import PageAllocator
from engine.errors import HeadraceError
from engine.messages import (
    Admitted,
    AnyEvent,
    Finished,
    Progress,
    Ready,
    RequestFailed,
    Residency,
    Sampled,
    Stats,
    StepEnded,
    StepStarted,
    Submit,
    UseVocabulary,
)
from engine.options import EngineOptions
from engine.runtime import faults
from engine.runtime.accounting import close_books, make_room
from engine.runtime.debug import DebugFaults
from engine.runtime.execution import Outcome, Request, StepRunner
from engine.runtime.grammar_queue import GrammarQueue
from engine.runtime.loading import load
from engine.runtime.meters import Meters
from engine.runtime.parts import Parts
from engine.runtime.sampling_row import SamplingRow, validate
from engine.runtime.thinking import ThinkingLimit
from engine.scheduler.integrity import check
from engine.scheduler.resources import PageManager
from engine.scheduler.scheduler import Ending, Scheduler
from engine.scheduler.sequence import Plan, Sequence

logger = logging.getLogger(__name__)

Send = Callable[[list[AnyEvent]], None]


class Engine:
    """Made by `Engine.load`. Commands take effect between steps; all calls come from one thread."""

    def __init__(self, parts: Parts, debug: DebugFaults | None = None) -> None:
        self.parts = parts
        allocator = PageAllocator(parts.kv.pages)
        self.scheduler = Scheduler(parts.limits, PageManager(allocator, parts.kv.page_tokens))
        self._runner = StepRunner(parts, debug or DebugFaults.read())
        close_books(parts, self._runner.graph_bytes)
        self._meters = Meters()
        self._requests: dict[int, Request] = {}
        self._outbox: list[AnyEvent] = []
        self._grammars = GrammarQueue(parts.limits.vocab_size)
        self._vocabulary = UseVocabulary(tokens=[], special=[], ends=[])

    @staticmethod
    def load(
        options: EngineOptions, on_progress: Callable[[Progress], None] | None = None
    ) -> Engine:
        """Load the model. Raises ModelNotFound, ModelFilesError, ModelConfigError,
        UnsupportedModel, DeviceUnavailable, InvalidRequest (an option) or OutOfMemory."""
        return Engine(load(options, on_progress))

    @property
    def ready(self) -> Ready:
        return self.parts.ready

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to compute or to tell."""
        return self.scheduler.has_work or bool(self._outbox)

    # --- commands ----------------------------------------------------------------------------

    def use_vocabulary(self, vocabulary: UseVocabulary) -> None:
        """What grammars and thinking budgets of later requests are made of."""
        self._grammars.use(vocabulary)
        self._vocabulary = vocabulary

    def submit(self, submit: Submit) -> None:
        """Queue a request. One that is refused ends with RequestFailed, told by the next step.

        Raises ValueError if a request of this number is live: the caller's defect, which no event
        could tell without ending the other one.
        """
        if submit.request in self._requests:
            raise ValueError(f"request {submit.request} is live already")
        limits, thinking = self.parts.limits, None
        try:
            validate(submit.sampling, limits.vocab_size)
            self._grammars.check(submit)
            if submit.thinking is not None:
                thinking = ThinkingLimit(submit.thinking, self._vocabulary, limits.vocab_size)
            sequence = self.scheduler.submit(submit)
        except HeadraceError as error:
            self._meters.failed += 1
            self._outbox.append(RequestFailed(request=submit.request, error=error.record()))
            return
        row = SamplingRow(
            submit.sampling, submit.tokens, limits.vocab_size, self.parts.device.torch
        )
        self._requests[submit.request] = Request(
            row, submit.logprobs, time.monotonic(), thinking=thinking
        )
        if submit.compiles:
            self._grammars.enter(sequence, submit)

    def cancel(self, request: int) -> None:
        """Give up a request, wherever it stands. Nothing happens if it has ended already."""
        sequence = self.scheduler.end(request)
        if sequence is not None:
            self._outbox.append(self._finished(sequence, "cancelled"))

    def stop_at(self, request: int, keep: int) -> None:
        """End a request after `keep` tokens; later ones are withdrawn from cache and usage."""
        sequence = self.scheduler.stop_at(request, keep)
        if sequence is not None:
            self._outbox.append(self._finished(sequence, "stop"))

    # --- the step ----------------------------------------------------------------------------

    def step(self, before_forward: Send | None = None) -> list[AnyEvent]:
        """Compute one step and return what happened.

        What is known before the forward (StepStarted last) goes to `before_forward` at that moment
        if it is given, else it leads the returned list. Raises DeviceFault or IntegrityError when
        the process must end; a request's own error is an event.
        """
        events, self._outbox = self._outbox, []
        self._take_grammars(events)
        for sequence in self.scheduler.admit():
            events.append(Admitted(request=sequence.request, prompt_tokens=sequence.prompt_tokens))
        plan = self.scheduler.plan()
        if plan is None:
            if not events:
                self._grammars.wait()
            return events
        number = self._meters.steps + 1
        events.append(
            StepStarted(
                step=number,
                prefill_tokens=plan.prefill_tokens,
                decode_sequences=plan.decode_sequences,
            )
        )
        if before_forward is not None:
            before_forward(events)
            events = []
        begin = time.monotonic()
        sampled = self._compute(plan, events)
        end = time.monotonic()
        self._meters.step(begin, end, plan.prefill_tokens, sampled, self.parts.experts)
        events.append(StepEnded(step=number, seconds=end - begin))
        if not self.scheduler.has_work:
            check(self.scheduler)
        return events

    def _take_grammars(self, events: list[AnyEvent]) -> None:
        for sequence, result in self._grammars.compiled():
            if isinstance(result, HeadraceError):
                self._fail(sequence, result, events)
            else:
                self._requests[sequence.request].grammar = result
                self.scheduler.release(sequence)

    def _compute(self, plan: Plan, events: list[AnyEvent]) -> int:
        """Run a plan and record its outcomes. Returns the number of tokens sampled."""
        try:
            outcomes = self._runner.run(plan, self._requests)
        except Exception as error:
            broken = error if faults.is_device_fault(error) else self._lost()
            if broken is not None:
                raise faults.device_fault(broken) from error
            self._step_failed(plan, error, events)
            return 0
        now = time.monotonic()
        return sum(self._record(outcome, now, events) for outcome in outcomes)

    def _record(self, outcome: Outcome, now: float, events: list[AnyEvent]) -> bool:
        """Take an outcome into the books. True if it gave a token."""
        sequence = outcome.piece.sequence
        request = self._requests[sequence.request]
        if outcome.error is not None:
            self._fail(sequence, outcome.error, events)
            return False
        ending = self.scheduler.advance(outcome.piece, outcome.token)
        if outcome.token is None:
            return False
        if not request.answered:
            request.answered = True
            self._meters.first_token(now - request.submitted)
        stop_token = ending.stop_token if ending is not None else None
        if stop_token is None:
            request.sampling.record(outcome.token)
            events.append(
                Sampled(
                    request=sequence.request,
                    token=outcome.token,
                    logprob=outcome.logprob,
                    top=outcome.top,
                )
            )
            if request.thinking is not None:
                request.thinking.accept(outcome.token)
            if request.grammar is not None:
                try:
                    over = request.grammar.accept(outcome.token)
                except HeadraceError as error:
                    self._fail(sequence, error, events)
                    return True
                if over:
                    self.scheduler.end(sequence.request)
                    ending = Ending("stop")
        if ending is not None:
            events.append(self._finished(sequence, ending.reason, stop_token))
        return True

    def _lost(self) -> Exception | None:
        return faults.lost(self.parts.device.torch)

    def _step_failed(self, plan: Plan, error: Exception, events: list[AnyEvent]) -> None:
        """A step of several members is repeated by each of them alone; one alone is at fault.

        Only a lack of memory earns a lone member a second try, with what slots of experts gave up.
        """
        numbers = [piece.sequence.request for piece in plan.pieces]
        logger.error("the step of requests %s failed", numbers, exc_info=error)
        memory = faults.is_out_of_memory(error)
        if memory:
            make_room(self.parts, faults.wanted_bytes(error))
        first = plan.pieces[0].sequence
        if len(plan.pieces) == 1 and not (memory and first.suspect_at is None):
            self._fail(first, faults.request_fault(error, first.request), events)
            return
        self.scheduler.suspect(plan, recompute=self.parts.states is not None)

    def _fail(self, sequence: Sequence, error: HeadraceError, events: list[AnyEvent]) -> None:
        self.scheduler.end(sequence.request)
        del self._requests[sequence.request]
        self._meters.failed += 1
        events.append(RequestFailed(request=sequence.request, error=error.record()))

    def _finished(
        self,
        sequence: Sequence,
        reason: Literal["stop", "length", "cancelled"],
        stop_token: int | None = None,
    ) -> Finished:
        del self._requests[sequence.request]
        self._meters.finished += 1
        return Finished(
            request=sequence.request,
            reason=reason,
            prompt_tokens=sequence.prompt_tokens,
            completion_tokens=sequence.completion_tokens,
            stop_token=stop_token,
        )

    # --- what it tells -----------------------------------------------------------------------

    def stats(self) -> Stats:
        return self._meters.stats(time.monotonic(), self.parts, self.scheduler)

    def residency(self) -> Residency:
        """Experts that have a slot, by layer; empty for a model without routed experts."""
        experts = self.parts.experts
        return Residency() if experts is None else experts.residency()

    def close(self) -> None:
        """End every live request and let go of the model's memory."""
        for sequence in self.scheduler.live:
            self.scheduler.end(sequence.request)
        self._requests.clear()
        self._outbox.clear()
        self._grammars.close()
        self._runner.close()
        if self.parts.experts is not None:
            self.parts.experts.close()
        del self.parts, self._runner
