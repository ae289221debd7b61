"""What the scheduler decides, against a model that answers right only from right pages."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import ContextLengthExceeded, IntegrityError, InvalidRequest, Overloaded
from engine.messages import Submit
from engine.scheduler.integrity import check
from engine.scheduler.limits import Limits
from engine.scheduler.scheduler import Ending
from engine.scheduler.sequence import State
from tests.properties import examples
from tests.scheduler.simulation import Simulation, alone


def limits(**changes: int) -> Limits:
    values = {
        "context_tokens": 64,
        "kv_tokens": 32,
        "vocab_size": 50,
        "chunk_tokens": 5,
        "max_sequences": 3,
        "max_waiting": 4,
    }
    return Limits(**{**values, **changes})


def request(number: int, length: int, max_tokens: int = 4, **more: object) -> Submit:
    tokens = [(number * 7 + position * 3) % 50 for position in range(length)]
    return Submit(request=number, tokens=tokens, max_tokens=max_tokens, **more)  # type: ignore[arg-type]


def test_one_request_gives_the_models_tokens() -> None:
    simulation = Simulation(limits())
    wanted = request(1, 7, 6)
    simulation.submit(wanted)
    simulation.run()
    assert simulation.outputs[1] == alone(wanted, 6)
    assert simulation.endings == {1: Ending("length")}
    assert simulation.scheduler.pages.available == 8


def test_prompt_is_cut_into_chunks_at_fixed_places() -> None:
    simulation = Simulation(limits())
    simulation.submit(request(1, 12, 2))
    simulation.run()
    assert simulation.shapes[1] == [(0, 5), (5, 5), (10, 2), (12, 1)]


def test_chunk_places_do_not_depend_on_neighbours() -> None:
    simulation = Simulation(limits(max_sequences=3))
    for number, length in ((1, 3), (2, 8), (3, 1)):
        simulation.submit(request(number, length, 2))
    simulation.run()
    assert simulation.shapes[1] == [(0, 3), (3, 1)]
    assert simulation.shapes[2] == [(0, 5), (5, 3), (8, 1)]
    assert simulation.shapes[3] == [(0, 1), (1, 1)]


def test_short_prompts_share_a_step() -> None:
    simulation = Simulation(limits())
    for number in (1, 2, 3):
        simulation.submit(request(number, 2, 2))
    first = simulation.step()
    assert first is not None
    # Two prompts of two tokens fill the chunk of five; a third would exceed it.
    assert [piece.sequence.request for piece in first.pieces] == [1, 2]


def test_running_decodes_ride_along_with_a_long_prompt() -> None:
    simulation = Simulation(limits(kv_tokens=64), pages=16)
    simulation.submit(request(1, 2, 12))
    simulation.step()
    simulation.submit(request(2, 30, 2))
    before = len(simulation.outputs[1])
    for count in range(1, 7):
        plan = simulation.step()
        assert plan is not None
        assert (plan.decode_sequences, plan.prefill_tokens) == (1, 5)
        assert len(simulation.outputs[1]) == before + count
    assert len(simulation.outputs[2]) == 1


def test_stop_token_ends_and_is_not_counted() -> None:
    simulation = Simulation(limits())
    wanted = request(1, 6, 20)
    expected = alone(wanted, 20)
    end = expected[3]
    wanted = request(1, 6, 20, stop_tokens=[end])
    simulation.submit(wanted)
    simulation.run()
    assert simulation.outputs[1] == expected[: expected.index(end)]
    assert simulation.endings[1] == Ending("stop", end)


@pytest.mark.parametrize(
    ("prompt", "context", "kv", "says"),
    [
        (64, 64, 100, "context of 64"),
        (32, 64, 32, "32 tokens that the KV"),
        (70, 64, 32, "32 tokens"),
    ],
)
def test_too_long_a_prompt_is_refused_with_numbers(
    prompt: int, context: int, kv: int, says: str
) -> None:
    simulation = Simulation(limits(context_tokens=context, kv_tokens=kv), pages=kv // 4)
    with pytest.raises(ContextLengthExceeded, match=says) as error:
        simulation.submit(request(1, prompt))
    assert str(prompt) in error.value.message
    assert not simulation.scheduler.has_work


def test_output_is_clipped_to_the_context() -> None:
    simulation = Simulation(limits(context_tokens=10))
    simulation.submit(request(1, 7, 1000))
    simulation.run()
    assert len(simulation.outputs[1]) == 3
    assert simulation.endings[1] == Ending("length")


def test_output_is_clipped_to_the_pages_that_exist() -> None:
    simulation = Simulation(limits())
    simulation.submit(request(1, 20, 1000))
    simulation.run()
    assert len(simulation.outputs[1]) == 12


@pytest.mark.parametrize(
    ("submit", "param"),
    [
        (Submit(request=1, tokens=[], max_tokens=1), "messages"),
        (Submit(request=1, tokens=[50], max_tokens=1), "messages"),
        (Submit(request=1, tokens=[-1], max_tokens=1), "messages"),
        (Submit(request=1, tokens=[1], max_tokens=0), "max_tokens"),
        (Submit(request=1, tokens=[1], max_tokens=1, logprobs=51), "top_logprobs"),
        (Submit(request=1, tokens=[1], max_tokens=1, logprobs=-2), "top_logprobs"),
    ],
)
def test_malformed_requests_are_refused(submit: Submit, param: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        Simulation(limits()).submit(submit)
    assert error.value.param == param


def test_full_queue_is_refused() -> None:
    simulation = Simulation(limits(max_sequences=2, max_waiting=1))
    for number in (1, 2, 3):
        simulation.submit(request(number, 2))
    with pytest.raises(Overloaded, match="limit is 1"):
        simulation.submit(request(4, 2))
    simulation.run()
    simulation.submit(request(4, 2))
    simulation.run()
    assert sorted(simulation.endings) == [1, 2, 3, 4]


def test_a_live_number_cannot_be_used_twice() -> None:
    simulation = Simulation(limits())
    simulation.submit(request(1, 2))
    with pytest.raises(InvalidRequest, match="live already"):
        simulation.submit(request(1, 3))


def test_admission_is_in_order_of_arrival() -> None:
    simulation = Simulation(limits(max_sequences=1))
    for number in (5, 3, 4, 1):
        simulation.submit(request(number, 3))
    simulation.run()
    assert simulation.admitted == [5, 3, 4, 1]


def test_cancel_in_the_middle_of_a_prompt_frees_everything() -> None:
    simulation = Simulation(limits())
    simulation.submit(request(1, 20))
    simulation.step()
    sequence = simulation.scheduler.find(1)
    assert sequence is not None and sequence.state is State.PREFILLING and sequence.computed == 5
    assert simulation.scheduler.end(1) is sequence
    check(simulation.scheduler)
    assert simulation.scheduler.pages.available == 8
    assert simulation.scheduler.end(1) is None
    assert not simulation.scheduler.has_work


def test_newest_is_preempted_and_nothing_is_lost() -> None:
    simulation = Simulation(limits())
    both = [request(1, 12, 16), request(2, 9, 16)]
    for wanted in both:
        simulation.submit(wanted)
    simulation.run()
    assert simulation.scheduler.preemptions > 0
    for wanted in both:
        assert simulation.outputs[wanted.request] == alone(wanted, 16)
    assert simulation.admitted == [1, 2], "a preempted request is announced once"
    restarts = {
        number: sum(start == 0 for start, _ in simulation.shapes[number]) for number in (1, 2)
    }
    assert restarts[1] == 1 and restarts[2] > 1, "the oldest never restarts"


def test_a_preempted_sequence_is_computed_again_in_chunks() -> None:
    simulation = Simulation(limits(kv_tokens=48), pages=12)
    simulation.submit(request(1, 12, 30))
    simulation.submit(request(2, 12, 20))
    simulation.run()
    shapes = simulation.shapes[2]
    again = next(i for i, (start, _) in enumerate(shapes) if i and start == 0)
    restart = shapes[again:]
    computed = shapes[again - 1][0] + 1
    assert computed > 15 and [length for _, length in restart[:3]] == [5, 5, 5]
    assert sum(length for _, length in shapes) == computed + 12 + 20 - 1


def test_a_newcomer_waits_for_room_beyond_its_prompt() -> None:
    simulation = Simulation(limits())
    simulation.submit(request(1, 12, 8))
    simulation.step()
    # Three of eight pages are taken; five would hold the prompt, but not the neighbour's next page.
    simulation.submit(request(2, 20, 2))
    simulation.step()
    assert simulation.admitted == [1]
    simulation.run()
    assert simulation.admitted == [1, 2] and simulation.scheduler.preemptions == 0


def test_preempted_sequence_comes_before_newer_ones() -> None:
    simulation = Simulation(limits(max_sequences=2))
    for number in (1, 2, 3):
        simulation.submit(request(number, 12, 12))
    simulation.run()
    assert list(simulation.endings) == [1, 2, 3]


def test_stop_at_withdraws_later_tokens() -> None:
    simulation = Simulation(limits())
    wanted = request(1, 7, 12)
    sequence = simulation.submit(wanted)
    for _ in range(9):
        simulation.step()
    assert sequence.completion_tokens > 4
    assert simulation.scheduler.stop_at(1, 3) is sequence
    check(simulation.scheduler)
    assert sequence.tokens[7:] == alone(wanted, 3)
    assert sequence.completion_tokens == 3 and sequence.state is State.FINISHED
    assert sequence.computed <= 10
    assert simulation.scheduler.pages.available == 8
    assert simulation.scheduler.stop_at(1, 2) is None


def test_only_the_guilty_member_of_a_step_fails() -> None:
    simulation = Simulation(limits(max_sequences=4, kv_tokens=64), pages=16)
    wanted = [request(number, 3 + number, 10) for number in (1, 2, 3)]
    for each in wanted:
        simulation.submit(each)
    for _ in range(5):
        simulation.step()
    simulation.failures[2] = 8
    simulation.run()
    assert simulation.failed == [2]
    for each in (wanted[0], wanted[2]):
        assert simulation.outputs[each.request] == alone(each, 10)


def test_recomputation_after_a_fault_repeats_the_first_shapes() -> None:
    simulation = Simulation(limits(kv_tokens=64), pages=16)
    simulation.submit(request(1, 7, 10))
    simulation.submit(request(2, 4, 10))
    for _ in range(5):
        simulation.step()
    before = list(simulation.shapes[1])
    assert before == [(0, 5), (5, 2), (7, 1), (8, 1), (9, 1)]
    simulation.failures[2] = 6
    simulation.run()
    again = simulation.shapes[1][len(before) :]
    assert again[: len(before)] == before
    assert [start for start, _ in again] == [0, 5, *range(7, 16)]


def test_survivors_of_a_fault_share_steps_again() -> None:
    simulation = Simulation(limits(max_sequences=4, kv_tokens=64), pages=16)
    for number in (1, 2, 3):
        simulation.submit(request(number, 4, 10))
    for _ in range(4):
        simulation.step()
    simulation.failures[2] = 7
    simulation.run()
    members = [[piece.sequence.request for piece in plan.pieces] for plan in simulation.plans]
    assert simulation.failed == [2]
    assert members[members.index([2]) + 1 :] == [[3], *[[1, 3]] * 4, [3], [3]]


def test_it_comes_to_an_end_when_every_shared_step_fails() -> None:
    simulation = Simulation(limits(max_sequences=4, kv_tokens=64), pages=16, sharing_fails=True)
    wanted = [request(number, 3 + number, 10) for number in (1, 2, 3)]
    for each in wanted:
        simulation.submit(each)
    simulation.run(200)
    for each in wanted:
        assert simulation.outputs[each.request] == alone(each, 10)
    assert simulation.failed == []


def fail_until_solitary(simulation: Simulation, numbers: set[int]) -> None:
    simulation.sharing_fails = True
    sequences = [simulation.scheduler.find(number) for number in numbers]
    for _ in range(60):
        simulation.step()
        if all(each is not None and each.solitary for each in sequences):
            simulation.sharing_fails = False
            return
    raise AssertionError("nobody became solitary")


def test_solitary_sequences_take_turns_with_each_other_and_the_rest() -> None:
    bounds = limits(max_sequences=4, kv_tokens=1000, context_tokens=1000)
    simulation = Simulation(bounds, pages=250)
    for number in (1, 2):
        simulation.submit(request(number, 3, 500))
    fail_until_solitary(simulation, {1, 2})
    simulation.submit(request(3, 3, 10))
    simulation.submit(request(4, 1, 10))
    simulation.plans.clear()
    for _ in range(24):
        simulation.step()
    members = [[piece.sequence.request for piece in plan.pieces] for plan in simulation.plans]
    assert {3, 4} <= set(simulation.endings), "healthy requests starve"
    assert members.count([3, 4]) == 10
    alone = [each[0] for each in members if each in ([1], [2])]
    assert abs(alone.count(1) - alone.count(2)) <= 1 and len(alone) >= 10


def test_a_solitary_sequence_is_forgiven_after_progress() -> None:
    bounds = limits(max_sequences=4, kv_tokens=1000, context_tokens=1000)
    simulation = Simulation(bounds, pages=250)
    both = [request(number, 3, 200) for number in (1, 2)]
    for each in both:
        simulation.submit(each)
    fail_until_solitary(simulation, {1, 2})
    simulation.plans.clear()
    simulation.run()
    shared = [plan for plan in simulation.plans if len(plan.pieces) == 2]
    assert len(shared) > 100
    for each in both:
        assert simulation.outputs[each.request] == alone(each, 200)


@settings(max_examples=examples(80))
@given(
    shapes=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 60)), min_size=1, max_size=7),
    faults=st.lists(st.booleans(), max_size=60),
    for_ever=st.booleans(),
)
def test_nobody_starves_whatever_shared_steps_fail(
    shapes: list[tuple[int, int]], faults: list[bool], for_ever: bool
) -> None:
    seats = 4
    bounds = limits(
        max_sequences=seats, kv_tokens=400, context_tokens=400, chunk_tokens=12, max_waiting=9
    )
    script = iter(faults)
    simulation = Simulation(bounds, pages=100, fails_shared=lambda: next(script, for_ever))
    wanted = [request(number, *shape) for number, shape in enumerate(shapes)]
    for each in wanted:
        simulation.submit(each)
    waited: dict[int, int] = {}
    for _ in range(4000):
        if not simulation.scheduler.has_work:
            break
        plan = simulation.step()
        assert plan is not None
        had = {piece.sequence.request for piece in plan.pieces}
        for sequence in simulation.scheduler.running:
            number = sequence.request
            waited[number] = 0 if number in had else waited.get(number, 0) + 1
            assert waited[number] <= 4 * seats, f"request {number} starves"
    for each in wanted:
        assert simulation.outputs[each.request] == alone(each, each.max_tokens)


def test_integrity_check_sees_a_leaked_page() -> None:
    simulation = Simulation(limits())
    simulation.submit(request(1, 7))
    simulation.step()
    simulation.scheduler.running[0].pages.pop()
    with pytest.raises(IntegrityError, match="owned"):
        check(simulation.scheduler)


def test_others_go_before_a_request_that_is_held() -> None:
    """Released, it comes as if it were new: those that run stay ordered by arrival."""
    simulation = Simulation(limits())
    held = simulation.submit(request(1, 7, 4, grammar="start: /a/"))
    for number in (2, 3):
        simulation.submit(request(number, 7, 4))
    simulation.step()
    scheduler = simulation.scheduler
    assert [each.request for each in scheduler.running] == [2, 3] and held.state is State.WAITING
    scheduler.release(held)
    simulation.step()
    assert [each.request for each in scheduler.running] == [2, 3, 1]
    simulation.run()
    check(scheduler)
    assert simulation.outputs[1] == alone(request(1, 7), 4)


def test_a_held_request_can_end_and_counts_as_waiting() -> None:
    simulation = Simulation(limits(max_waiting=0))
    for number in (1, 2, 3):
        simulation.submit(request(number, 3, 4, grammar="start: /a/"))
    with pytest.raises(Overloaded):
        simulation.scheduler.submit(request(4, 3))
    assert simulation.scheduler.admit() == [] and simulation.scheduler.plan() is None
    for number in (1, 2, 3):
        simulation.scheduler.end(number)
    assert not simulation.scheduler.has_work
    check(simulation.scheduler)
