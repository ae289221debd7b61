"""Rendering and tokenising in threads, given up when the client hangs up or the server ends."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from engine.chat.interruption import GivenUp, check, interruptible
from engine.errors import RuntimeUnavailable
from engine.server.http import unless_hung_up

T = TypeVar("T")


class TextWork:
    """Some threads for one kind of work: more of the kind waits for them, other kinds do not."""

    def __init__(self, name: str, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._wanted: set[threading.Event] = set()
        """Set in turn for each work that is given up."""
        self._closed = False

    async def run(self, request: Request, work: Callable[..., T], *args: Any, **named: Any) -> T:
        """The result of `work`, which calls interruption.check. The body must have been read.

        Raises ClientDisconnect, RuntimeUnavailable when the server ends, and what the work raises.
        """
        done = await unless_hung_up(request, self._run(functools.partial(work, *args, **named)))
        if done is None:
            raise ClientDisconnect
        return done[0]

    async def _run(self, work: Callable[[], T]) -> tuple[T]:
        given_up = threading.Event()

        def watched() -> T:
            with interruptible(given_up):
                check()  # it may have waited for its turn too long
                return work()

        if self._closed:
            raise _ending()
        self._wanted.add(given_up)
        try:
            return (await asyncio.get_running_loop().run_in_executor(self._threads, watched),)
        except GivenUp as error:
            raise _ending() from error
        finally:
            given_up.set()
            self._wanted.discard(given_up)

    def close(self) -> None:
        """Give up all work, and do not wait until it has noticed."""
        self._closed = True
        for given_up in self._wanted:
            given_up.set()
        self._threads.shutdown(wait=False)


def _ending() -> RuntimeUnavailable:
    return RuntimeUnavailable("The server is shutting down.")
