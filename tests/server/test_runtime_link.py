"""The pipe to the runtime, with a process at its other end that misbehaves on request."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from engine.errors import HeadraceError, RuntimeUnavailable
from engine.messages import Admitted, Finished, RequestFailed, Sampled, Submit
from engine.options import EngineOptions
from engine.server import runtime_link
from engine.server.runtime_link import RequestStream, RuntimeLink

T = TypeVar("T")
SUBMIT = Submit(request=0, tokens=[1], max_tokens=9)


def with_link(
    script: str, use: Callable[[RuntimeLink], Awaitable[T]], step_timeout_s: float = 60.0
) -> T:
    """Run `use` with a started link, close it, and check that no process is left."""

    async def run() -> T:
        command = (sys.executable, str(Path(__file__).with_name("scripted_runtime.py")), script)
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
        assert link.live_requests == 0

    with_link("waits", use)
    assert caplog.text.count("took Cancel(request=1)") == 1


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
        assert link.load_error is not None

    with_link("too-large", use)


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
        assert link.load_error is None  # it did load

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
