"""The pipe to the runtime, with a process at its other end that misbehaves on request."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import psutil
import pytest
from starlette.types import Message

from engine.chat.tokenizer import Tokenizer
from engine.errors import HeadraceError, ModelFilesError, RuntimeUnavailable
from engine.messages import (
    Admitted,
    Finished,
    RequestFailed,
    Sampled,
    Sampling,
    Stats,
    Submit,
    UseVocabulary,
)
from engine.options import EngineOptions
from engine.server import runtime_link, runtime_process
from engine.server.collected import collect
from engine.server.counters import with_earlier
from engine.server.generation import Generation, generate, opened
from engine.server.http import EventStream
from engine.server.request_stream import RequestStream
from engine.server.runtime_end import runtime_end
from engine.server.runtime_link import RuntimeLink
from tests.chat.vocabularies import byte_level

T = TypeVar("T")
posix = pytest.mark.skipif(os.name == "nt", reason="signals that Windows does not have")
SUBMIT = Submit(request=0, tokens=[1], max_tokens=9)


def with_link(
    script: str,
    use: Callable[[RuntimeLink], Awaitable[T]],
    step_timeout_s: float = 60.0,
    memory: Path | None = None,
) -> T:
    """Run `use` with a started link, close it, and check that no process is left."""

    async def run() -> T:
        program = str(Path(__file__).with_name("scripted_runtime.py"))
        command = (sys.executable, program, script, *([str(memory)] if memory else []))
        link = RuntimeLink(EngineOptions(model="x"), step_timeout_s=step_timeout_s, command=command)
        before = set(psutil.Process().children())
        link.start()
        try:
            return await use(link)
        finally:
            await link.close()
            assert set(psutil.Process().children()) <= before
            assert link.state == "stopped"

    return asyncio.run(asyncio.wait_for(run(), 60))


async def begun(link: RuntimeLink) -> RequestStream:
    """A request that has its first token."""
    await link.wait_loaded()
    stream = await link.submit(SUBMIT)
    assert isinstance(await stream.next(), Admitted)
    assert isinstance(await stream.next(), Sampled)
    return stream


async def failure(stream: RequestStream) -> RequestFailed:
    event = await stream.next()
    assert isinstance(event, RequestFailed) and stream.done
    return event


def test_a_hang_up_reaches_the_runtime_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def use(link: RuntimeLink) -> None:
        stream = await begun(link)
        await stream.cancel()
        await stream.cancel()
        event = await stream.next()
        assert isinstance(event, Finished) and event.reason == "cancelled"
        await stream.cancel()
        assert not link._streams

    with_link("waits", use)
    assert caplog.text.count("took Cancel(request=1)") == 1


def test_each_runtime_learns_the_vocabulary_once_before_its_first_grammar(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    with_grammar = msgspec.structs.replace(SUBMIT, grammar="start: /a/")

    async def use(link: RuntimeLink) -> None:
        link.vocabulary = lambda: UseVocabulary(tokens=[b"a"], special=[], ends=[])
        await begun(link)
        streams = await asyncio.gather(*(link.submit(with_grammar) for _ in range(3)))
        for stream in streams:
            assert isinstance(await stream.next(), Admitted)
        os.kill(link.stats("m").runtime_pid, signal.SIGABRT)
        while link.restarts == 0:
            await asyncio.sleep(0.01)
        await link.wait_loaded()
        again = await link.submit(with_grammar)
        assert isinstance(await again.next(), Admitted)

    with_link("waits", use)
    taken = re.findall(r"took (Submit|UseVocabulary)", caplog.text)
    assert taken == ["Submit", "UseVocabulary", *["Submit"] * 3, "UseVocabulary", "Submit"]


def test_a_runtime_that_dies_fails_its_requests_and_comes_back() -> None:
    async def use(link: RuntimeLink) -> None:
        streams = [await begun(link)]
        event = await failure(streams[0])
        assert event.error.code == "runtime_died" and event.error.status == 502
        assert "SIGABRT" in event.error.message
        with pytest.raises(RuntimeUnavailable, match="being restarted"):
            await link.submit(SUBMIT)
        await link.wait_loaded()
        assert link.restarts == 1 and "SIGABRT" in link.stats("m").last_error

    with_link("dies", use)


@posix
@pytest.mark.parametrize(
    ("number", "words", "cause"),
    [
        (signal.SIGSEGV, "memory that is not its own", "native code"),
        (signal.SIGILL, "does not know an instruction", "newer CPU"),
        (signal.SIGBUS, "mapped file", "model"),
        (signal.SIGABRT, "gave up", "native code"),
        (signal.SIGKILL, "killed from outside", "memory ran out"),
        (signal.SIGTERM, "told to end", "Headrace did not"),
        (signal.SIGUSR1, "ended by a signal", ""),
    ],
)
def test_a_crash_is_told_in_words(
    number: signal.Signals,
    words: str,
    cause: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))

    async def use(link: RuntimeLink) -> None:
        stream = await begun(link)
        os.kill(link.stats("m").runtime_pid, number)
        error = (await failure(stream)).error
        assert words in error.message and f"({number.name})" in error.message
        assert "took Submit" not in error.message  # its last line, which explains nothing
        assert cause in error.hint and str(tmp_path / "logs" / "runtime-crash.log") in error.hint
        await link.wait_loaded()

    with_link("waits", use)
    kept = (tmp_path / "logs" / "runtime-crash.log").read_text()
    assert number.name in kept.splitlines()[0] and "took Submit" in kept
    assert number.name in caplog.text


def test_a_log_that_cannot_be_kept_is_not_pointed_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "logs").write_text("a file where the folder should be")
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))

    async def use(link: RuntimeLink) -> None:
        assert "runtime-crash.log" not in (await failure(await begun(link))).error.hint
        await link.wait_loaded()

    with_link("dies", use)
    assert "were not kept" in caplog.text


def test_what_windows_says_of_a_crash() -> None:
    end = runtime_end(0xC0000005, "last line", platform="win32")
    assert end.reason == "it reached for memory that is not its own (status 0xC0000005)"
    assert runtime_end(3, "last line", platform="win32").reason.endswith("it last said: last line")


def test_the_runtimes_log_keeps_its_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def use(link: RuntimeLink) -> None:
        await link.wait_loaded()

    with_link("logs", use)
    told = [(r.levelname, r.message) for r in caplog.records if r.name == "headrace.runtime"]
    assert told[:5] == [
        ("INFO", "a stray line"),
        ("WARNING", "too warm"),
        ("ERROR", "too hot"),
        ("ERROR", "Traceback of it"),
        ("INFO", "well again"),
    ]


def test_a_hang_up_before_the_first_event_of_a_stream_cancels(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Such as of a request that waits for its turn; nobody has begun to read its frames."""
    caplog.set_level(logging.INFO)
    tokenizer = Tokenizer(byte_level(), Path("x"))
    generation = Generation([1], max_tokens=9, sampling=Sampling(), stop_tokens=())

    async def use(link: RuntimeLink) -> None:
        await link.wait_loaded()
        source = await opened(generate(link, tokenizer, generation), patience_s=0.1)

        async def frames() -> AsyncIterator[bytes]:
            yield b"opening"
            async for _ in source:
                yield b"event"

        async def hung_up() -> Message:
            return {"type": "http.disconnect"}

        async def nobody(message: Message) -> None:
            pass

        await EventStream(frames(), source=source)({"method": "POST"}, hung_up, nobody)
        while link._streams:
            await asyncio.sleep(0.01)

    with_link("silent", use)
    assert caplog.text.count("took Cancel(request=1)") == 1


def test_counters_go_on_over_restarts() -> None:
    async def use(link: RuntimeLink) -> None:
        assert link.stats("m").runtime_restarted_at == 0
        began = time.time()
        for life in (1, 2, 3):
            await failure(await begun(link))
            await link.wait_loaded()
            stats = link.stats("m")
            assert (stats.requests_finished, stats.decode_tokens) == (2 * life, 30 * life)
            assert stats.runtime_restarts == life
            assert began <= stats.runtime_restarted_at <= time.time()
            began = stats.runtime_restarted_at
            assert stats.requests_failed == life  # the request that died with it
            assert stats.kv_tokens_used == 0  # no counter: the new runtime has its own

    with_link("dies", use)


def test_the_time_to_the_first_token_is_kept_until_there_is_another() -> None:
    before = Stats(state="ready", ttft_s=0.2, ttft_worst_s=0.9)
    kept = with_earlier(Stats(state="ready"), before)
    assert (kept.ttft_s, kept.ttft_worst_s) == (0.2, 0.9)
    newer = with_earlier(Stats(state="ready", ttft_s=0.3, ttft_worst_s=0.3), before)
    assert (newer.ttft_s, newer.ttft_worst_s) == (0.3, 0.9)


def test_a_step_that_does_not_end_is_ended_and_named() -> None:
    async def use(link: RuntimeLink) -> None:
        event = await failure(await begun(link))
        assert "step 7 took longer than 0.3 s" in event.error.message
        await link.wait_loaded()
        assert link.restarts == 1

    with_link("stuck", use, step_timeout_s=0.3)


def test_silence_while_a_request_waits_is_ended_and_named() -> None:
    async def use(link: RuntimeLink) -> None:
        await link.wait_loaded()
        await asyncio.sleep(0.5)
        assert link.restarts == 0  # an idle runtime may be silent
        event = await failure(await begun(link))
        assert "it said nothing for longer than 0.3 s" in event.error.message

    with_link("waits", use, step_timeout_s=0.3)


def test_a_broken_stream_is_named() -> None:
    async def use(link: RuntimeLink) -> None:
        await link.wait_loaded()
        stream = await link.submit(SUBMIT)
        await stream.next()
        assert "its stream was broken" in (await failure(stream)).error.message

    with_link("babbles", use)


def test_what_the_runtime_says_kept_it_from_loading_is_final() -> None:
    async def use(link: RuntimeLink) -> None:
        with pytest.raises(HeadraceError) as raised:
            await link.wait_loaded()
        assert raised.value.code == "out_of_memory" and raised.value.hint == "Buy more."
        assert link.state == "failed" and link.restarts == 0
        with pytest.raises(RuntimeUnavailable, match="needs 9 bytes, has 4"):
            await link.submit(SUBMIT)
        assert link.failure is not None

    with_link("too-large", use)


def test_what_keeps_it_from_loading_again_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another program may have taken the memory for a moment."""
    monkeypatch.setattr(runtime_link, "BACK_OFF_S", (0.0,))

    async def use(link: RuntimeLink) -> None:
        await failure(await begun(link))
        await link.wait_loaded()
        assert link.restarts == 4 and link.failure is None
        assert "needs 9 bytes, has 4" in link.stats("m").last_error

    with_link("short-of-memory", use, memory=tmp_path / "lives")


def test_giving_up_a_model_is_final(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the runtime is spawned, and while its Ready is on its way."""
    record = ModelFilesError("The tokenizer is broken.").record()

    async def at_once(link: RuntimeLink) -> None:
        link.fail(record)
        await asyncio.sleep(0.5)
        assert link.state == "failed" and link.stats("m").runtime_pid == 0

    async def while_spawned(link: RuntimeLink) -> None:
        await asyncio.sleep(0)
        await at_once(link)

    async def with_ready_on_its_way(link: RuntimeLink) -> None:
        await asyncio.sleep(0.4)
        link._set_failed(record)
        await asyncio.sleep(1.0)
        assert link.state == "failed" and link.ready is None
        with pytest.raises(RuntimeUnavailable, match="tokenizer is broken"):
            await link.submit(SUBMIT)

    for use in (at_once, while_spawned, with_ready_on_its_way):
        with_link("late-ready", use)


@posix
def test_a_stopped_runtime_is_ended_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a full pipe before it, so that not even asking it to end goes through."""
    monkeypatch.setattr(runtime_process, "END_SECONDS", 0.5)

    async def use(link: RuntimeLink) -> None:
        await link.wait_loaded()
        large = Submit(request=0, tokens=[1] * 4_000_000, max_tokens=9)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(link.submit(large), 0.3)

    with_link("stopped", use)


@posix
def test_a_hang_up_while_the_pipe_is_full_cancels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def use(link: RuntimeLink) -> None:
        await link.wait_loaded()
        process = psutil.Process(link.stats("m").runtime_pid)
        process.suspend()
        large = Submit(request=0, tokens=[1] * 1_000_000, max_tokens=9)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(link.submit(large), 0.3)
        assert not link._streams
        process.resume()
        stream = await link.submit(SUBMIT)
        assert isinstance(await stream.next(), Admitted)

    with_link("waits", use)
    assert caplog.text.count("took Cancel(request=1)") == 1


@posix
def test_a_child_that_holds_the_pipes_does_not_hold_the_restart_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async def use(link: RuntimeLink) -> None:
        stream = await begun(link)
        began = time.monotonic()
        await failure(stream)
        await link.wait_loaded()
        assert time.monotonic() - began < 4.0  # 1 s for the pipes, the rest for Python to start
        await begun(link)
        began = time.monotonic()
        await link.close()
        assert time.monotonic() - began < 4.0

    try:
        with_link("leaves-child", use)
    finally:
        for pid in re.findall(r"left (\d+)", caplog.text):
            psutil.Process(int(pid)).kill()


def test_dying_while_loading_is_tried_twice_and_no_more() -> None:
    async def use(link: RuntimeLink) -> None:
        with pytest.raises(HeadraceError, match="ended 2 times while it loaded") as raised:
            await link.wait_loaded()
        assert "exit code 9" in raised.value.message and "no such kernel" in raised.value.message
        assert link.restarts == 1

    with_link("dies-loading", use)


def test_dying_again_and_again_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_link, "BACK_OFF_S", (0.0,))
    monkeypatch.setattr(runtime_link, "CRASH_LIMIT", 2)

    async def use(link: RuntimeLink) -> None:
        for _ in range(3):
            await failure(await begun(link))
        with pytest.raises(HeadraceError, match="ended 3 times in a short time"):
            await link.wait_loaded()
        assert (await link.wait_failed()).code == "runtime_died"

    with_link("dies", use)


def test_closing_ends_live_requests() -> None:
    streams: list[RequestStream] = []

    async def use(link: RuntimeLink) -> None:
        streams.append(await begun(link))

    with_link("waits", use)
    assert streams[0]._events.get_nowait().error.message == "The server is shutting down."  # type: ignore[union-attr]


def test_a_runtime_that_cannot_be_started_is_a_typed_error() -> None:
    async def run() -> None:
        link = RuntimeLink(EngineOptions(model="x"), command=("/no/such/program",))
        link.start()
        with pytest.raises(HeadraceError, match="could not be started"):
            await link.wait_loaded()
        await link.close()

    asyncio.run(run())


def test_tokens_after_a_stop_string_are_not_counted() -> None:
    """Not even when the runtime had finished before it could be told of the stop."""
    tokenizer = Tokenizer(byte_level(), Path("x"))

    async def use(link: RuntimeLink) -> None:
        await link.wait_loaded()
        generation = Generation(
            prompt=tokenizer.encode("a.b!cdefg"),  # which this runtime says again
            max_tokens=99,
            sampling=Sampling(),
            stop_tokens=(),
            stop_strings=("!",),
        )
        done = await collect(generate(link, tokenizer, generation))
        assert (done.text, done.ended.reason, done.ended.stop_string) == ("a.b", "stop", "!")
        assert done.ended.completion_tokens == len(tokenizer.encode("a.b!"))

    with_link("finishes", use)
