"""The loop between probes, arbiter and engine: pace, silence, rest, exchange; and its words."""

from collections.abc import Callable

import pytest

from app.core.governor.arbiter import Memory, State
from app.core.governor.budget import BudgetAnswer, BudgetRequest, Outcome, read_answer
from app.core.governor.claims import Claim
from app.core.governor.evidence import Engine, Evidence, Gpu, Missing, Program
from app.core.governor.loop import CALM_S, PACE_S, SILENT_S, GovernorLoop
from app.core.governor.policy import GIB, Mode, Policy
from app.core.governor.view import ActionKind, Dealings, cause, describe

GAME = Program(pid=7, name="game.exe", game="Game", library="Steam", on_gpu=True)


class World:
    """Evidence that comes when it is let, and an engine that answers when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.stuck = False
        self.identity = "one"
        self.held: int | None = 18 * GIB
        self.age_s = 0.0
        self.engines: list[Engine] = []
        """As they were when it was looked at the GPU."""
        self.programs: tuple[Program, ...] = ()
        self.looks: list[float] = []
        self.rests = 0
        self.requests: list[BudgetRequest] = []
        self.answer: Callable[[BudgetAnswer], None] = lambda answer: None
        self._evidence: Evidence | None = None
        self.loop = GovernorLoop(self, self, self.engine, Policy)

    def engine(self) -> Engine | None:
        if self.held is None:
            return None
        return Engine(
            identity=self.identity,
            held_bytes=self.held,
            floor_bytes=3 * GIB,
            age_s=self.age_s,
        )

    def begin(self, now: float, engine: Engine, policy: Policy) -> None:
        self.looks.append(now)
        self.engines.append(engine)
        gpu = Gpu(total_bytes=24 * GIB, used_bytes=engine.held_bytes + GIB)
        missing = (Missing(probe="GameMode", why="This session has no D-Bus."),)
        self._evidence = Evidence(
            at=now, gpu=gpu, engine=engine, programs=self.programs, missing=missing
        )

    def result(self) -> Evidence | None:
        if self.stuck:
            return None
        seen, self._evidence = self._evidence, None
        return seen

    def rest(self) -> None:
        self.rests += 1

    def send(self, request: BudgetRequest, answered: Callable[[BudgetAnswer], None]) -> None:
        self.requests.append(request)
        self.answer = answered

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += 0.25
            self.loop.tick(self.now)


def test_it_looks_each_second_and_less_where_nothing_depends_on_it() -> None:
    world = World()
    world.run(20)
    assert 19 <= len(world.looks) <= 20 / PACE_S + 1
    world.loop.set_mode(Mode.PAUSED)
    world.looks.clear()
    world.run(20)
    assert 3 <= len(world.looks) <= 20 / CALM_S + 1


def test_without_vram_nothing_is_looked_at_and_probes_rest() -> None:
    world = World()
    world.held = None
    world.run(5)
    assert not world.looks and not world.rests
    world.held = 18 * GIB
    world.run(3)
    world.held = None
    world.looks.clear()
    world.run(5)
    assert not world.looks and world.rests == 1
    assert world.loop.view.state is State.IDLE


def test_a_driver_that_hangs_is_told_and_nothing_piles_up() -> None:
    world = World()
    world.run(2)
    world.stuck = True
    world.looks.clear()
    world.run(SILENT_S + 3)
    assert len(world.looks) == 1
    assert "has not answered for" in world.loop.view.trouble
    world.loop.set_mode(Mode.GIVE_BACK)
    world.run(0.5)
    assert [request.vram_bytes for request in world.requests] == [0]  # it does not wait for that
    world.held = None
    world.run(1)
    assert world.rests == 0  # what hangs is not interrupted
    world.stuck = False
    world.run(1)
    assert world.rests == 1 and not world.loop.view.trouble


def test_one_request_at_a_time_and_the_newest_budget() -> None:
    world = World()
    world.programs = (GAME,)
    world.run(3)
    assert [request.vram_bytes for request in world.requests] == [3 * GIB]
    assert world.requests[0].cause.startswith("Game runs")
    world.loop.set_mode(Mode.GIVE_BACK)
    world.run(3)
    assert len(world.requests) == 1
    world.answer(BudgetAnswer(Outcome.APPLIED, 3 * GIB))
    world.run(1)
    assert [request.vram_bytes for request in world.requests] == [3 * GIB, 0]


def test_an_engine_whose_least_is_more_is_believed() -> None:
    world = World()
    world.programs = (GAME,)
    world.run(1)
    assert "its least, 3.00 GiB" in world.loop.view.cause
    world.answer(BudgetAnswer(Outcome.APPLIED, 4 * GIB))
    world.run(1)
    assert "its least, 4.00 GiB" in world.loop.view.cause
    world.run(30)
    assert len(world.requests) == 1


def test_figures_of_before_a_resize_are_not_taken_for_those_of_after() -> None:
    world = World()
    world.programs = (GAME,)
    world.run(1)
    world.age_s = 100.0  # no newer ones come
    world.run(1)
    assert not world.engines[-1].settled  # it may have done it or not
    world.answer(BudgetAnswer(Outcome.APPLIED, 4 * GIB))
    world.run(2)
    engine = world.engines[-1]
    assert engine.settled and engine.held_bytes == 4 * GIB and engine.age_s < 3


def test_figures_of_before_a_rise_leave_open_what_the_engine_holds() -> None:
    world = World()
    world.run(61)
    (offer,) = world.requests
    assert offer.vram_bytes > 18 * GIB
    world.age_s = 100.0
    world.answer(BudgetAnswer(Outcome.APPLIED, offer.vram_bytes))
    world.run(2)
    assert not world.engines[-1].settled and len(world.requests) == 1
    world.age_s, world.held = 0.0, offer.vram_bytes
    world.run(2)
    assert world.engines[-1].settled


def test_an_answer_of_an_engine_that_is_gone_counts_for_nothing() -> None:
    world = World()
    world.programs = (GAME,)
    world.run(2)
    late = world.answer
    world.identity = "two"
    world.run(2)
    assert len(world.requests) == 2
    late(BudgetAnswer(Outcome.UNSUPPORTED))
    world.answer(BudgetAnswer(Outcome.FAILED, why="It is busy."))
    world.run(5)
    assert len(world.requests) >= 3 and "It is busy." in world.loop.view.trouble
    world.answer(BudgetAnswer(Outcome.APPLIED, 3 * GIB))
    world.run(1)
    assert not world.loop.view.trouble


def test_what_cannot_look_is_shown() -> None:
    world = World()
    world.run(1)
    (missing,) = world.loop.view.missing
    assert (missing.probe, missing.why) == ("GameMode", "This session has no D-Bus.")


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, b'{"applied_bytes": 5, "state": "ready", "more": 1}',
         BudgetAnswer(Outcome.APPLIED, 5, "ready")),
        (404, b"anything", BudgetAnswer(Outcome.UNSUPPORTED)),
        (409, b'{"error": {"message": "Not now."}}', BudgetAnswer(Outcome.FAILED, why="Not now.")),
    ],
)  # fmt: skip
def test_answers(status: int, body: bytes, expected: BudgetAnswer) -> None:
    assert read_answer(status, body) == expected


@pytest.mark.parametrize(("status", "body"), [(200, b"{}"), (200, b"<html>"), (500, b""), (0, b"")])
def test_every_other_answer_is_a_failure_with_a_reason(status: int, body: bytes) -> None:
    answer = read_answer(status, body, "Connection refused")
    assert answer.outcome is Outcome.FAILED and answer.why


class TestWords:
    def memory(self, state: State, **changes: object) -> Memory:
        return Memory(state=state, budget=3 * GIB, **changes)  # type: ignore[arg-type]

    def test_every_state_has_a_sentence(self) -> None:
        claims = (Claim("a", "ELDEN RING"),)
        for state in State:
            sentence = cause(self.memory(state, claims=claims))
            assert sentence.endswith(".") and sentence[0].isupper()

    @pytest.mark.parametrize(
        ("claims", "sentence"),
        [
            ([("A", False)], "A runs: the engine keeps less, 3.00 GiB."),
            ([("A", True)], "A starts: the engine keeps less, 3.00 GiB."),
            ([("A", False), ("B", True)], "A and B run: the engine keeps less, 3.00 GiB."),
            ([("A", False), ("B", False), ("C", False)],
             "A, B and C run: the engine keeps less, 3.00 GiB."),
        ],
    )  # fmt: skip
    def test_games_are_named(self, claims: list[tuple[str, bool]], sentence: str) -> None:
        named = tuple(Claim(name, name, starting) for name, starting in claims)
        assert cause(self.memory(State.GAME, claims=named)) == sentence

    def test_what_can_be_done(self) -> None:
        def kinds(state: State, **changes: object) -> list[tuple[str, str, str]]:
            view = describe(self.memory(state, **changes), Mode.AUTO, Dealings(), ())
            return [(one.kind.value, one.label, one.program) for one in view.actions]

        one, two = Claim("a", "A"), Claim("b", "B")
        assert kinds(State.GAME, claims=(one,)) == [
            ("undo", "Undo", ""),
            ("never", "Never for this app", "A"),
        ]
        assert kinds(State.GAME, claims=(one, two))[1:] == [
            ("never", "Never for A", "A"),
            ("never", "Never for B", "B"),
        ]
        assert [kind for kind, *_ in kinds(State.SQUEEZED)] == [ActionKind.UNDO]
        assert kinds(State.SQUEEZED, user="blender")[1][2] == "blender"
        assert kinds(State.RECOVERING) == [("undo", "Take it back now", "")]
        assert kinds(State.FULL) == kinds(State.PAUSED) == kinds(State.GIVEN_BACK) == []

    def test_an_engine_that_cannot_resize_is_no_trouble_until_it_should(self) -> None:
        dealings = Dealings(unsupported=True)
        assert describe(
            self.memory(State.GAME, claims=(Claim("a", "A"),)), Mode.AUTO, dealings, ()
        ).trouble
        assert not describe(Memory(state=State.FULL), Mode.AUTO, dealings, ()).trouble
        assert not describe(Memory(), Mode.AUTO, dealings, ()).trouble
