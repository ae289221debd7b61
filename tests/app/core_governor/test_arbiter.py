"""What holds for the arbiter whatever happens."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.governor import arbiter
from app.core.governor.arbiter import QUIET_S, ROUND_BYTES, STEP_S, WORTH_BYTES, Memory, State
from app.core.governor.evidence import Engine, Evidence, Gpu, Program
from app.core.governor.policy import GIB, Mode, Policy
from tests.app.core_governor.scene import Actor, EngineScript, Expectation, Scene, play
from tests.properties import examples

BEGUN = Engine(identity="one", held_bytes=18 * GIB, floor_bytes=3 * GIB)
GAME = Program(pid=7, name="game.exe", game="Game", library="Steam", on_gpu=True)


def evidence(at: float, others: float = 1.5, **changes: object) -> Evidence:
    engine = changes.pop("engine", BEGUN)
    held = engine.held_bytes if isinstance(engine, Engine) else 0
    gpu = Gpu(total_bytes=24 * GIB, used_bytes=held + round(others * GIB))
    return Evidence(at=at, gpu=gpu, engine=engine, **changes)  # type: ignore[arg-type]


def spans(end: float) -> st.SearchStrategy[tuple[float, float]]:
    times = st.floats(0, end, allow_subnormal=False)
    return st.tuples(times, times).map(lambda pair: (min(pair), max(pair)))


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """Some minutes of anything: curves, games, lost figures, sleep, slow engines."""
    end = 400.0
    total = draw(st.sampled_from([8.0, 12.0, 16.0, 24.0, 32.0]))
    floor = total * draw(st.floats(0.1, 0.4))
    wants = floor + (total - floor) * draw(st.floats(0.05, 0.6))
    points = draw(
        st.lists(
            st.tuples(st.floats(1, end), st.floats(0, total)), max_size=12, unique_by=lambda p: p[0]
        )
    )
    others = [(0.0, 0.05 * total), *sorted(points)]
    listed = draw(st.booleans())
    programs = [
        Actor(
            name=name,
            game=game,
            library="Steam" if game else "",
            at=span,
            on_gpu=span if listed else None,
            fullscreen=[draw(spans(end))],
        )
        for name, game in (("game.exe", "Game"), ("tool", ""), ("firefox", ""))
        if (span := draw(spans(end)))
    ]
    return Scene(
        about="drawn",
        total=total,
        engine=EngineScript(
            wants=wants,
            floor=floor,
            lag=draw(st.sampled_from([0.0, 0.5, 4.0])),
            figures_every=draw(st.sampled_from([1.0, 10.0])),
        ),
        others=others,
        programs=programs,
        lists_processes=listed,
        lost=draw(st.lists(spans(end), max_size=2)),
        expect=[Expectation(at=end)],
    )


@settings(max_examples=examples(25))
@given(scenes())
def test_it_falls_as_often_as_it_must_and_rises_rarely(scene: Scene) -> None:
    frames, stage = play(scene, 1.0)
    asked = stage.asked
    for (_, had), (now, gets) in pairwise(asked):
        if gets > had:
            earlier = [(at, budget) for at, budget in asked if at < now]
            rises = [at for (_, low), (at, high) in pairwise(earlier) if high > low]
            falls = [at for (_, high), (at, low) in pairwise(earlier) if low < high]
            assert not rises or now - rises[-1] >= STEP_S
            assert not falls or now - falls[-1] >= QUIET_S - 1
    assert all(frame.held >= scene.engine.floor - 1e-6 for frame in frames)
    assert all(budget >= scene.engine.floor - 1e-6 for _, budget in asked)


@settings(max_examples=examples(12))
@given(scenes(), st.floats(0.05, 0.9))
def test_it_comes_to_rest(scene: Scene, level: float) -> None:
    """Once nothing changes, the budget does not either, and the headroom is there if it can be."""
    changing = 400.0
    others = [point for point in scene.others if point[0] < changing]
    scene.others = [*others, (changing, level * scene.total)]
    scene.programs = [actor for actor in scene.programs if not actor.game]
    for actor in scene.programs:
        actor.fullscreen = []
    scene.lost, scene.expect = [], [Expectation(at=changing + 1500)]
    frames, stage = play(scene, 1.0)
    calm = [frame for frame in frames if frame.at > changing + 1200]
    assert len({frame.view.budget_bytes for frame in calm}) == 1
    headroom = Policy().headroom(round(scene.total * GIB)) / GIB
    assert calm[-1].free >= 0.75 * headroom - 0.1 or calm[-1].held <= scene.engine.floor + 0.1
    assert all(frame.at < changing + 1200 for frame in frames if frame.asked < len(stage.asked))


@settings(max_examples=examples(60))
@given(st.floats(0, 20), st.floats(0, 1e6), st.sampled_from(list(Mode)))
def test_a_game_has_its_room_with_the_first_evidence(others: float, at: float, mode: Mode) -> None:
    begun = arbiter.decide(Memory(), evidence(at), Policy())
    seen = evidence(at + 1, others, programs=(GAME,))
    decided = arbiter.decide(begun, seen, Policy(mode=mode))
    if mode is Mode.AUTO:
        assert (decided.state, decided.budget) == (State.GAME, 3 * GIB)
    else:
        assert decided.budget == (None if mode is Mode.PAUSED else 0)


def test_deciding_again_changes_nothing() -> None:
    once = arbiter.decide(Memory(), evidence(0, 5), Policy())
    again = arbiter.decide(once, evidence(0, 5), Policy())
    assert (
        (again.state, again.budget) == (once.state, once.budget) == (State.SQUEEZED, again.budget)
    )


def test_a_budget_is_whole_pieces_above_the_floor() -> None:
    decided = arbiter.decide(Memory(), evidence(0, 5.123), Policy())
    assert decided.budget is not None and decided.budget % ROUND_BYTES == 0
    floor = BEGUN.floor_bytes + 12345
    engine = Engine(identity="one", held_bytes=18 * GIB, floor_bytes=floor)
    decided = arbiter.decide(Memory(), evidence(0, 20, engine=engine), Policy())
    assert (decided.budget, decided.at_floor) == (floor, True)


def test_a_clock_that_jumps_raises_nothing() -> None:
    memory = arbiter.decide(Memory(), evidence(100, programs=(GAME,)), Policy())
    engine = Engine(identity="one", held_bytes=3 * GIB, floor_bytes=3 * GIB)
    for jump in (-90.0, 3600.0, 1e9):
        decided = arbiter.decide(memory, evidence(100 + jump, engine=engine), Policy())
        assert (decided.state, decided.budget) == (State.RECOVERING, memory.budget)


def test_a_floor_that_moves_a_little_asks_for_nothing_new() -> None:
    memory = arbiter.decide(Memory(), evidence(0, programs=(GAME,)), Policy())
    for at, change in enumerate((30, -60, 100), start=1):
        floor = 3 * GIB + change * (1 << 20)
        engine = Engine(identity="one", held_bytes=floor, floor_bytes=floor)
        memory = arbiter.decide(memory, evidence(at, engine=engine, programs=(GAME,)), Policy())
        assert memory.budget == 3 * GIB
    lower = Engine(identity="one", held_bytes=2 * GIB, floor_bytes=2 * GIB)
    memory = arbiter.decide(memory, evidence(9, engine=lower, programs=(GAME,)), Policy())
    assert memory.budget == 2 * GIB


def test_what_is_undone_is_forgotten_when_it_is_gone() -> None:
    memory = arbiter.decide(Memory(), evidence(0, programs=(GAME,)), Policy())
    memory = arbiter.decide(arbiter.undo(memory), evidence(1, programs=(GAME,)), Policy())
    assert memory.state is State.FULL and memory.ignored
    memory = arbiter.decide(memory, evidence(2), Policy())
    memory = arbiter.decide(memory, evidence(3, programs=(GAME,)), Policy())
    assert memory.state is State.GAME


def test_undo_where_nothing_was_taken_does_nothing() -> None:
    memory = arbiter.decide(Memory(), evidence(0), Policy())
    assert arbiter.undo(memory) == memory
    assert arbiter.undo(Memory()) == Memory()


def test_memory_does_not_grow() -> None:
    memory = Memory()
    for at in range(1000):
        programs = (replace_pid(GAME, at + 1),)
        memory = arbiter.decide(memory, evidence(at, programs=programs), Policy())
        assert memory.state is State.GAME
        if at % 2:
            memory = arbiter.undo(memory)
    assert len(memory.seen) <= QUIET_S + 2
    assert len(memory.ignored) <= 1 and len(memory.accused) <= 1


def replace_pid(program: Program, pid: int) -> Program:
    return Program(pid=pid, started=float(pid), name=program.name, fullscreen=True, exclusive=True)


def test_the_headroom_is_a_share_or_what_is_set() -> None:
    assert Policy().headroom(8 * GIB) == GIB
    assert Policy().headroom(100 * GIB) == 8 * GIB
    assert replace(Policy(), headroom_bytes=3 * GIB).headroom(24 * GIB) == 3 * GIB
    assert WORTH_BYTES < GIB
