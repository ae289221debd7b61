"""Random lives of requests: whatever happens, books stay exact and everyone ends once, rightly."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.errors import ContextLengthExceeded, Overloaded
from engine.messages import Submit
from engine.scheduler.integrity import check
from engine.scheduler.limits import Limits
from tests.properties import examples
from tests.scheduler.simulation import Simulation, alone

# Steps within which the oldest request must gain: its longest prompt in the smallest chunks, once
# more for a recomputation, and the neighbours' lone repeats after a failed step.
PATIENCE = 200


class Lives(RuleBasedStateMachine):
    @initialize(
        context=st.integers(2, 40),
        pages=st.integers(1, 9),
        page_tokens=st.integers(1, 5),
        chunk=st.integers(1, 9),
        seats=st.integers(1, 4),
        waiting=st.integers(0, 4),
    )
    def begin(
        self, context: int, pages: int, page_tokens: int, chunk: int, seats: int, waiting: int
    ) -> None:
        self.limits = Limits(
            context_tokens=context,
            kv_tokens=pages * page_tokens,
            vocab_size=50,
            chunk_tokens=chunk,
            max_sequences=seats,
            max_waiting=waiting,
        )
        self.simulation = Simulation(self.limits, page_tokens, pages)
        self.submitted: dict[int, Submit] = {}
        self.allowed: dict[int, int] = {}
        self.withdrawn: dict[int, int] = {}
        self.cancelled: set[int] = set()
        self.number = 0

    @rule(
        length=st.integers(1, 45),
        max_tokens=st.integers(1, 30),
        stop=st.lists(st.integers(0, 49), max_size=2),
        salt=st.integers(0, 49),
    )
    def submit(self, length: int, max_tokens: int, stop: list[int], salt: int) -> None:
        self.number += 1
        tokens = [(salt + position * position) % 50 for position in range(length)]
        submit = Submit(request=self.number, tokens=tokens, max_tokens=max_tokens, stop_tokens=stop)
        bound = min(self.limits.context_tokens, self.limits.kv_tokens)
        running = len(self.simulation.scheduler.running)
        waiting = len(self.simulation.scheduler.waiting)
        try:
            self.simulation.submit(submit)
        except ContextLengthExceeded:
            assert length + 1 > bound
        except Overloaded:
            assert waiting >= self.limits.max_waiting + self.limits.max_sequences - running
        else:
            assert length + 1 <= bound
            self.submitted[self.number] = submit
            self.allowed[self.number] = min(max_tokens, bound - length)

    @rule(count=st.integers(1, 12))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.simulation.step()

    @precondition(lambda self: self.simulation.scheduler.has_work)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        live = sorted(each.request for each in self.simulation.scheduler.live)
        number = data.draw(st.sampled_from(live))
        assert self.simulation.scheduler.end(number) is not None
        self.cancelled.add(number)

    @precondition(lambda self: self.simulation.scheduler.has_work)
    @rule(data=st.data(), keep=st.integers(0, 5))
    def stop_at(self, data: st.DataObject, keep: int) -> None:
        live = sorted(each.request for each in self.simulation.scheduler.live)
        number = data.draw(st.sampled_from(live))
        sequence = self.simulation.scheduler.stop_at(number, keep)
        assert sequence is not None
        self.withdrawn[number] = sequence.completion_tokens
        self.simulation.outputs[number] = sequence.tokens[sequence.prompt_tokens :]

    @precondition(lambda self: self.simulation.scheduler.has_work)
    @rule(data=st.data(), ahead=st.integers(0, 9))
    def poison(self, data: st.DataObject, ahead: int) -> None:
        victims = sorted(self.simulation.scheduler.live, key=lambda each: each.request)
        victim = data.draw(st.sampled_from(victims))
        self.simulation.failures[victim.request] = victim.computed + ahead

    @precondition(lambda self: self.simulation.scheduler.has_work)
    @rule()
    def oldest_gains(self) -> None:
        oldest = min(self.simulation.scheduler.live, key=lambda each: each.arrival)
        before = oldest.completion_tokens
        for _ in range(PATIENCE):
            self.simulation.step()
            if oldest.completion_tokens > before or self._ended(oldest.request):
                return
        raise AssertionError(f"request {oldest.request} starves")

    def _ended(self, number: int) -> bool:
        return number in self.simulation.endings or number in self.simulation.failed

    @invariant()
    def books_are_exact(self) -> None:
        if not hasattr(self, "simulation"):
            return
        check(self.simulation.scheduler)
        live = {each.request for each in self.simulation.scheduler.live}
        for number in self.submitted:
            ends = (
                (number in self.simulation.endings)
                + self.simulation.failed.count(number)
                + (number in self.cancelled)
                + (number in self.withdrawn)
                + (number in live)
            )
            assert ends == 1, f"request {number} has {ends} fates"

    def teardown(self) -> None:
        if not hasattr(self, "simulation"):
            return
        self.simulation.run(20_000)
        scheduler = self.simulation.scheduler
        assert scheduler.pages.available == scheduler.pages.total
        for number, submit in self.submitted.items():
            output = self.simulation.outputs[number]
            expected = alone(submit, self.allowed[number])
            assert output == expected[: len(output)], "tokens changed"
            if number in self.simulation.endings:
                assert output == expected
                reason = self.simulation.endings[number].reason
                assert reason == ("stop" if len(expected) < self.allowed[number] else "length")
            if number in self.withdrawn:
                assert len(output) == self.withdrawn[number]


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=examples(60), stateful_step_count=25)
