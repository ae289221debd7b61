"""The real process over real pipes."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.messages import (
    HEADER_BYTES,
    Admitted,
    AnyCommand,
    AnyEvent,
    Cancel,
    Configure,
    Fatal,
    Finished,
    Progress,
    Ready,
    ReportResidency,
    RequestFailed,
    Residency,
    Sampled,
    Sampling,
    Shutdown,
    StatsReport,
    StepEnded,
    StepStarted,
    StopAt,
    Submit,
    body_length,
    pack,
    unpack_events,
)
from engine.options import EngineOptions
from tests.runtime.conftest import VOCAB
from tests.runtime.driving import driver, options, prompt

PATIENCE = 60.0


class Child:
    """The runtime as the server sees it."""

    def __init__(self, program: list[str], environment: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
        )
        self.frames: queue.Queue[list[AnyEvent] | None] = queue.Queue()
        self.seen: list[list[AnyEvent]] = []
        self._ahead: list[AnyEvent] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.log = b""
        self._logger = threading.Thread(target=self._drain)
        self._logger.start()

    def _read(self) -> None:
        stdout = self.process.stdout
        assert stdout is not None
        while header := stdout.read(HEADER_BYTES):
            self.frames.put(unpack_events(stdout.read(body_length(header))))
        self.frames.put(None)

    def _drain(self) -> None:
        assert self.process.stderr is not None
        self.log = self.process.stderr.read()

    def send(self, *commands: AnyCommand) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(pack(list(commands)))
        self.process.stdin.flush()

    def wait_for(self, wanted: Callable[[AnyEvent], bool]) -> AnyEvent:
        """The next event of this kind; those before it are passed over."""
        deadline = time.monotonic() + PATIENCE
        while True:
            while self._ahead:
                event = self._ahead.pop(0)
                if wanted(event):
                    return event
            frame = self.frames.get(timeout=max(0.1, deadline - time.monotonic()))
            assert frame is not None, f"the process ended: {self.end()} {self.log!r}"
            self.seen.append(frame)
            self._ahead = list(frame)

    def wait_end(self, request: int) -> Finished | RequestFailed:
        end = self.wait_for(
            lambda e: isinstance(e, Finished | RequestFailed) and e.request == request
        )
        assert isinstance(end, Finished | RequestFailed)
        return end

    def events(self) -> list[AnyEvent]:
        return [event for frame in self.seen for event in frame]

    def tokens(self, request: int) -> list[int]:
        return [e.token for e in self.events() if isinstance(e, Sampled) and e.request == request]

    def close_pipe(self) -> float:
        """Seconds until the process has ended after its stdin was closed."""
        assert self.process.stdin is not None
        begin = time.monotonic()
        self.process.stdin.close()
        self.process.wait(timeout=PATIENCE)
        return time.monotonic() - begin

    def end(self) -> int:
        code = self.process.wait(timeout=PATIENCE)
        self._reader.join()
        self._logger.join()
        return code

    def dispose(self) -> None:
        self.process.kill()
        self.end()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue


Start = Callable[..., Child]
MAIN = ["-m", "engine.runtime.process"]


@pytest.fixture
def start() -> Iterator[Start]:
    children: list[Child] = []

    def begin(program: list[str] | None = None, **environment: str) -> Child:
        child = Child(program or MAIN, environment)
        children.append(child)
        return child

    yield begin
    for child in children:
        child.dispose()


def configure(model: Path, **changes: object) -> Configure:
    return Configure(options=options(model, **changes))


def request(number: int, length: int = 10, count: int = 8, **more: object) -> Submit:
    values = {"tokens": prompt(length, seed=number), "sampling": Sampling(temperature=0), **more}
    return Submit(request=number, max_tokens=count, **values)  # type: ignore[arg-type]


def is_ready(event: AnyEvent) -> bool:
    return isinstance(event, Ready)


def test_a_whole_conversation(start: Start, moe_model: Path) -> None:
    child = start()
    child.send(configure(moe_model))
    ready = child.wait_for(is_ready)
    assert isinstance(ready, Ready) and ready.family == "qwen2_moe"
    phases = [event.phase for event in child.events() if isinstance(event, Progress)]
    assert phases[0] == "starting" and {"experts", "reading"} <= set(phases)

    wanted = [request(1), request(2, 30, 12), request(3, 300)]
    child.send(*wanted)
    assert isinstance(child.wait_end(3), RequestFailed)
    child.wait_end(2)
    alone = driver(moe_model).run(wanted[:2])
    assert child.tokens(1) == alone.tokens(1) and child.tokens(2) == alone.tokens(2)

    child.send(ReportResidency())
    child.wait_for(lambda event: isinstance(event, Residency))
    report = child.wait_for(lambda e: isinstance(e, StatsReport) and e.stats.requests_finished == 2)
    assert isinstance(report, StatsReport) and report.stats.requests_failed == 1
    child.send(Shutdown())
    assert child.end() == 0


def test_the_heartbeat_leaves_before_the_step_is_computed(start: Start, dense_model: Path) -> None:
    child = start(HEADRACE_DEBUG_STEP_SECONDS="1.0")
    child.send(configure(dense_model))
    child.wait_for(is_ready)
    child.send(request(1, count=1))
    child.wait_for(lambda event: isinstance(event, StepStarted))
    began = time.monotonic()
    assert [type(event) for event in child.seen[-1]] == [Admitted, StepStarted]
    ended = child.wait_for(lambda event: isinstance(event, StepEnded))
    assert time.monotonic() - began > 0.5
    assert isinstance(ended, StepEnded) and ended.seconds >= 1.0
    # All that a step gave is one frame.
    assert [type(event) for event in child.seen[-1]] == [Sampled, Finished, StepEnded]


def test_cancel_and_stop_at_between_steps(start: Start, dense_model: Path) -> None:
    child = start(HEADRACE_DEBUG_STEP_SECONDS="0.02")
    child.send(configure(dense_model))
    child.wait_for(is_ready)
    child.send(request(1, count=200), request(2, count=200))
    for number in (1, 2):
        child.wait_for(lambda e, n=number: isinstance(e, Sampled) and e.request == n)  # type: ignore[misc]
    child.send(Cancel(request=1), StopAt(request=2, keep=1))
    first, second = child.wait_end(1), child.wait_for(lambda e: isinstance(e, Finished))
    assert isinstance(first, Finished) and first.reason == "cancelled"
    assert second == Finished(request=2, reason="stop", prompt_tokens=10, completion_tokens=1)


def test_a_failing_request_leaves_others_alone(start: Start, moe_model: Path) -> None:
    child = start(HEADRACE_DEBUG_FAIL_TOKEN=str(VOCAB - 1))
    child.send(configure(moe_model))
    child.wait_for(is_ready)
    good = request(1, 20, 30)
    child.send(good)
    child.wait_for(lambda event: isinstance(event, Sampled))
    child.send(request(2, tokens=[1, VOCAB - 1, 2]))
    failed = child.wait_end(2)
    assert isinstance(failed, RequestFailed) and failed.error.code == "step_failed"
    assert isinstance(child.wait_end(1), Finished)
    assert child.tokens(1) == driver(moe_model).run([good]).tokens(1)


def test_a_missing_model_is_fatal_and_typed(start: Start, tmp_path: Path) -> None:
    child = start()
    child.send(configure(tmp_path / "absent"))
    fatal = child.wait_for(lambda event: isinstance(event, Fatal))
    assert isinstance(fatal, Fatal) and fatal.error.code == "model_not_found"
    assert "absent" in fatal.error.message
    assert child.end() == 1


def test_a_truncated_file_is_fatal_and_named(
    start: Start, dense_model: Path, tmp_path: Path
) -> None:
    for file in dense_model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    child = start()
    child.send(configure(tmp_path))
    fatal = child.wait_for(lambda event: isinstance(event, Fatal))
    assert isinstance(fatal, Fatal) and fatal.error.code == "model_files"
    assert "model.safetensors" in fatal.error.message


@pytest.mark.parametrize("frame", [b"\x03\x00\x00\x00abc", pack([Cancel(request=1)])])
def test_a_broken_first_frame_is_fatal(start: Start, frame: bytes) -> None:
    child = start()
    assert child.process.stdin is not None
    child.process.stdin.write(frame)
    child.process.stdin.flush()
    fatal = child.wait_for(lambda event: isinstance(event, Fatal))
    assert isinstance(fatal, Fatal) and fatal.error.code == "protocol"
    assert child.end() == 1


def test_it_ends_with_the_pipe_when_idle(start: Start, dense_model: Path) -> None:
    child = start()
    child.send(configure(dense_model))
    child.wait_for(is_ready)
    assert child.close_pipe() < 1.0
    assert child.end() == 0


def test_it_ends_with_the_pipe_in_the_middle_of_a_step(start: Start, dense_model: Path) -> None:
    child = start(HEADRACE_DEBUG_STEP_SECONDS="30")
    child.send(configure(dense_model))
    child.wait_for(is_ready)
    child.send(request(1))
    child.wait_for(lambda event: isinstance(event, StepStarted))
    assert child.close_pipe() < 1.0


def wrapped(patch: str) -> list[str]:
    """The process with a line of Python run before it starts."""
    return [
        "-c",
        f"import sys\n{patch}\nfrom engine.runtime import process\nsys.exit(process.main())",
    ]


def test_it_ends_with_the_pipe_while_it_loads(start: Start, dense_model: Path) -> None:
    slow = "import engine.runtime.loading as l, time\nl.open_checkpoint = lambda p: time.sleep(60)"
    child = start(wrapped(slow))
    child.send(configure(dense_model))
    child.wait_for(lambda event: isinstance(event, Progress))
    assert child.close_pipe() < 1.0


def test_stray_prints_go_to_the_log(start: Start, dense_model: Path) -> None:
    noisy = (
        "import engine.runtime.execution as x, os\n"
        "run = x.StepRunner.run\n"
        "def loud(self, plan, requests):\n"
        "    print('stray python')\n"
        "    os.write(1, b'stray native')\n"
        "    return run(self, plan, requests)\n"
        "x.StepRunner.run = loud"
    )
    child = start(wrapped(noisy))
    child.send(configure(dense_model))
    child.wait_for(is_ready)
    wanted = request(1)
    child.send(wanted)
    child.wait_end(1)
    assert child.tokens(1) == driver(dense_model).run([wanted]).tokens(1)
    child.send(Shutdown())
    assert child.end() == 0
    assert b"stray python" in child.log and b"stray native" in child.log


def test_a_defect_of_the_engine_is_fatal_and_typed(start: Start, dense_model: Path) -> None:
    broken = (
        "import engine.scheduler.scheduler as s\n"
        "def plan(self): raise KeyError('defect')\n"
        "s.Scheduler.plan = plan"
    )
    child = start(wrapped(broken))
    child.send(configure(dense_model))
    child.wait_for(is_ready)
    child.send(request(1))
    fatal = child.wait_for(lambda event: isinstance(event, Fatal))
    assert isinstance(fatal, Fatal) and fatal.error.code == "internal_error"
    assert "KeyError" in fatal.error.message
    assert child.end() == 1 and b"Traceback" in child.log


def test_stats_come_at_a_steady_pace(start: Start, dense_model: Path) -> None:
    child = start(HEADRACE_DEBUG_STEP_SECONDS="0.01")
    child.send(configure(dense_model))
    child.wait_for(is_ready)
    child.wait_for(lambda event: isinstance(event, StatsReport))
    child.send(request(1, count=200))
    begin = time.monotonic()
    child.wait_end(1)
    busy = time.monotonic() - begin
    reports = sum(isinstance(event, StatsReport) for event in child.events())
    assert 1 <= reports <= busy / 0.25 + 3
    first = child.wait_for(lambda event: isinstance(event, StatsReport))
    begin = time.monotonic()
    child.wait_for(lambda event: isinstance(event, StatsReport))
    assert 0.8 < time.monotonic() - begin < 2.5
    assert isinstance(first, StatsReport)


def broken(start: Start, model: str, device: str) -> tuple[Fatal, Child]:
    child = start(HEADRACE_DEBUG_BREAK_TOKEN="90")
    child.send(Configure(options=EngineOptions(model=model, device=device, threads=1)))
    child.wait_for(lambda event: isinstance(event, Ready))
    child.send(Submit(request=1, tokens=[5, 6, 7], max_tokens=3))
    assert isinstance(child.wait_end(1), Finished)
    child.send(Submit(request=2, tokens=[5, 90, 7], max_tokens=3))
    fatal = child.wait_for(lambda event: isinstance(event, Fatal))
    assert isinstance(fatal, Fatal)
    return fatal, child


def test_a_broken_device_ends_the_process_with_a_typed_error(
    start: Start, dense_model: Path
) -> None:
    fatal, child = broken(start, str(dense_model), "cpu")
    assert fatal.error.code == "device_fault" and "device-side assert" in fatal.error.message
    assert child.end() == 1


@pytest.mark.gpu
def test_an_error_of_a_kernel_is_found_whatever_reports_it(start: Start) -> None:
    """The kernel fails after its call returned; the first call to find out may be anybody's."""
    fatal, child = broken(start, "demo", "cuda")
    assert fatal.error.code == "device_fault"
    assert child.end() == 1
