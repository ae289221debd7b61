import pytest

from app.core.health import Health, HealthError
from app.core.supervisor import (
    ADOPT_PAUSE_S,
    FIRST_ANSWER_S,
    HUNG_S,
    MAX_QUICK_CRASHES,
    SILENT_S,
    STEADY_S,
    STOP_S,
    Action,
    Phase,
    Supervisor,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def supervisor(clock: Clock) -> Supervisor:
    return Supervisor(clock)


def answer(supervisor: Supervisor, status: str = "ready") -> None:
    supervisor.health(Health(status=status))


def pass_time(supervisor: Supervisor, clock: Clock, seconds: float) -> list[Action]:
    """Let the clock run with a tick each second; what they ask for."""
    actions: list[Action] = []
    end = clock.now + seconds
    while clock.now < end:
        clock.now = min(clock.now + 1, end)
        actions += supervisor.tick()
    return actions


def test_a_start_follows_the_health(supervisor: Supervisor) -> None:
    assert supervisor.start() == [Action.SPAWN]
    assert supervisor.view.phase is Phase.STARTING
    answer(supervisor, "loading")
    assert supervisor.view.phase is Phase.LOADING
    answer(supervisor)
    assert supervisor.view.phase is Phase.READY
    assert supervisor.start() == []


def test_a_crash_backs_off_and_keeps_the_reason(supervisor: Supervisor, clock: Clock) -> None:
    supervisor.start()
    answer(supervisor)
    clock.now += 30
    assert supervisor.exited("killed by signal 9") == []
    assert supervisor.view.phase is Phase.BACKING_OFF
    assert supervisor.view.reason == "killed by signal 9"
    clock.now += 0.9
    assert supervisor.tick() == []
    clock.now += 0.2
    assert supervisor.tick() == [Action.SPAWN]
    answer(supervisor)
    assert supervisor.view.reason == "killed by signal 9"


def test_delays_double_up_to_a_minute(supervisor: Supervisor, clock: Clock) -> None:
    supervisor.start()
    delays = []
    for _ in range(8):
        clock.now += 25  # too long for a quick crash
        supervisor.exited("x")
        assert supervisor.view.retry_at is not None
        delays.append(supervisor.view.retry_at - clock.now)
        clock.now = supervisor.view.retry_at
        assert supervisor.tick() == [Action.SPAWN]
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60]


def test_crashes_without_end(supervisor: Supervisor, clock: Clock) -> None:
    supervisor.start()
    for _ in range(1100):
        clock.now += 25
        supervisor.exited("x")
        assert supervisor.view.retry_at is not None
        clock.now = supervisor.view.retry_at
        assert supervisor.tick() == [Action.SPAWN]
    assert supervisor.view.crashes == 1100


def test_quick_crashes_in_a_row_give_up(supervisor: Supervisor, clock: Clock) -> None:
    supervisor.start()
    for crash in range(1, MAX_QUICK_CRASHES + 1):
        clock.now += 1
        supervisor.exited(f"no {crash}")
        if crash < MAX_QUICK_CRASHES:
            clock.now += 60
            assert supervisor.tick() == [Action.SPAWN]
    assert supervisor.view.phase is Phase.GAVE_UP
    assert supervisor.view.reason == f"no {MAX_QUICK_CRASHES}"
    clock.now += 1000
    assert supervisor.tick() == []
    assert supervisor.start() == [Action.SPAWN]


def test_a_steady_run_forgives(supervisor: Supervisor, clock: Clock) -> None:
    supervisor.start()
    for _ in range(3):
        clock.now += 1
        supervisor.exited("x")
        clock.now += 60
        supervisor.tick()
    clock.now += STEADY_S + 1
    answer(supervisor)
    assert supervisor.view.reason == ""
    supervisor.exited("y")
    assert supervisor.view.retry_at == clock.now + 1
    assert supervisor.view.crashes == 1


def test_stop_asks_then_kills(supervisor: Supervisor, clock: Clock) -> None:
    supervisor.start()
    answer(supervisor)
    assert supervisor.stop() == [Action.SHUT_DOWN]
    assert supervisor.stop() == []
    answer(supervisor)  # a late answer changes nothing
    assert supervisor.view.phase is Phase.STOPPING
    clock.now += STOP_S
    assert supervisor.tick() == [Action.KILL]
    assert supervisor.exited("killed") == []
    assert supervisor.view.phase is Phase.STOPPED
    assert supervisor.view.reason == ""


def test_restart_ends_then_starts(supervisor: Supervisor) -> None:
    supervisor.start()
    answer(supervisor)
    assert supervisor.restart() == [Action.SHUT_DOWN]
    assert supervisor.exited("as asked") == [Action.SPAWN]
    assert supervisor.view.phase is Phase.STARTING
    assert supervisor.view.reason == ""


def test_stop_during_a_restart_wins(supervisor: Supervisor) -> None:
    supervisor.start()
    supervisor.restart()
    supervisor.stop()
    assert supervisor.exited("as asked") == []
    assert supervisor.view.phase is Phase.STOPPED


def test_stop_while_backing_off(supervisor: Supervisor, clock: Clock) -> None:
    supervisor.start()
    supervisor.exited("x")
    assert supervisor.stop() == []
    clock.now += 100
    assert supervisor.tick() == []
    assert supervisor.view.phase is Phase.STOPPED


def test_a_found_orphan_is_adopted(supervisor: Supervisor) -> None:
    assert supervisor.start(found=True, orphaned=True) == [Action.ADOPT]
    assert supervisor.view.adopting and not supervisor.view.ours
    supervisor.adopted()
    answer(supervisor)
    assert supervisor.view.adopted and supervisor.view.ours and not supervisor.view.adopting


def test_an_orphan_that_refuses_is_asked_again_and_then_left(
    supervisor: Supervisor, clock: Clock
) -> None:
    supervisor.start(found=True, orphaned=True)
    end = clock.now + HUNG_S
    asked = 0
    while supervisor.view.adopting:
        answer(supervisor)
        assert supervisor.adoption_failed("401") == []
        taken = pass_time(supervisor, clock, ADOPT_PAUSE_S)
        assert taken in ([Action.ADOPT], [])
        asked += len(taken)
        assert clock.now <= end + 2 * ADOPT_PAUSE_S
    assert asked > 10
    assert (supervisor.view.phase, supervisor.view.reason) == (Phase.READY, "401")
    assert not supervisor.view.ours
    assert pass_time(supervisor, clock, HUNG_S) == []


def test_an_orphan_that_answers_late_is_adopted(supervisor: Supervisor, clock: Clock) -> None:
    supervisor.start(found=True, orphaned=True)
    assert supervisor.adoption_failed("timeout") == []
    assert pass_time(supervisor, clock, ADOPT_PAUSE_S) == [Action.ADOPT]
    supervisor.adopted()
    assert supervisor.view.ours


def test_an_orphan_that_answers_nothing_is_replaced(supervisor: Supervisor, clock: Clock) -> None:
    supervisor.start(found=True, orphaned=True)
    assert pass_time(supervisor, clock, HUNG_S - 1) == []
    assert pass_time(supervisor, clock, 1) == [Action.KILL]
    assert supervisor.exited("killed") == [Action.SPAWN]
    assert supervisor.view.ours


def test_what_somebody_else_started_is_left_alone(supervisor: Supervisor, clock: Clock) -> None:
    assert supervisor.start(found=True) == []
    answer(supervisor)
    assert not supervisor.view.ours and not supervisor.view.adopting
    assert supervisor.stop() == supervisor.restart() == []
    assert supervisor.view.phase is Phase.READY
    assert pass_time(supervisor, clock, HUNG_S + 1) == []
    assert supervisor.view.phase is Phase.SILENT
    assert supervisor.stop() == supervisor.restart() == []
    assert supervisor.exited("gone") == []
    assert supervisor.view.phase is Phase.STOPPED


def test_silence_is_shown_then_ended(supervisor: Supervisor, clock: Clock) -> None:
    supervisor.start()
    answer(supervisor)
    assert pass_time(supervisor, clock, SILENT_S) == []
    assert supervisor.view.phase is Phase.SILENT
    answer(supervisor)
    assert supervisor.view.phase is Phase.READY
    assert pass_time(supervisor, clock, HUNG_S) == [Action.KILL]
    assert supervisor.exited("killed") == [Action.SPAWN]
    assert "stopped answering" in supervisor.view.reason


def test_a_server_that_never_answers(supervisor: Supervisor, clock: Clock) -> None:
    supervisor.start()
    assert pass_time(supervisor, clock, FIRST_ANSWER_S - 1) == []
    assert pass_time(supervisor, clock, 1) == [Action.KILL]


def test_a_sleep_is_not_held_against_the_engine(supervisor: Supervisor, clock: Clock) -> None:
    supervisor.start()
    pass_time(supervisor, clock, 1)
    clock.now += 8 * 3600  # before it ever answered
    assert supervisor.tick() == []
    answer(supervisor)
    pass_time(supervisor, clock, 1)
    clock.now += 8 * 3600
    assert supervisor.tick() == []
    assert supervisor.view.phase is Phase.READY
    assert pass_time(supervisor, clock, HUNG_S) == [Action.KILL]  # awake, and still silent


def test_a_sleep_during_a_graceful_end(supervisor: Supervisor, clock: Clock) -> None:
    supervisor.start()
    answer(supervisor)
    supervisor.tick()
    supervisor.stop()
    clock.now += 8 * 3600
    assert supervisor.tick() == []
    assert pass_time(supervisor, clock, STOP_S) == [Action.KILL]


def test_a_model_that_fails_keeps_its_server(supervisor: Supervisor) -> None:
    supervisor.start()
    error = HealthError(code="model_files", message="shard 2 is missing", hint="Fetch it.")
    assert supervisor.health(Health(status="failed", error=error)) == []
    assert supervisor.view.phase is Phase.FAILED
    assert (supervisor.view.reason, supervisor.view.hint) == ("shard 2 is missing", "Fetch it.")


def test_a_restart_forgets_what_was_wrong(supervisor: Supervisor) -> None:
    supervisor.start()
    error = HealthError(code="model_files", message="shard 2 is missing", hint="Fetch it.")
    supervisor.health(Health(status="failed", error=error))
    said = []
    supervisor.restart()
    said.append((supervisor.view.reason, supervisor.view.hint))
    supervisor.exited("gone")
    assert supervisor.view.phase is Phase.STARTING
    said.append((supervisor.view.reason, supervisor.view.hint))
    answer(supervisor, "loading")
    said.append((supervisor.view.reason, supervisor.view.hint))
    assert said == [("", "")] * 3


def test_a_refusal_is_not_tried_again(supervisor: Supervisor, clock: Clock) -> None:
    supervisor.start()
    assert supervisor.exited("Port 5 is in use.", "Take another.", refused=True) == []
    clock.now += 100
    assert supervisor.tick() == []
    assert supervisor.view.phase is Phase.GAVE_UP
    assert supervisor.view.hint == "Take another."


def test_a_spawn_that_fails_counts_as_a_crash(supervisor: Supervisor) -> None:
    supervisor.start()
    supervisor.spawn_failed("no such file")
    assert supervisor.view.phase is Phase.BACKING_OFF
    assert supervisor.view.reason == "no such file"
