"""Giving up text work in a thread: between its steps the work looks whether it may go on."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextvars import ContextVar

_given_up: ContextVar[threading.Event | None] = ContextVar("given_up", default=None)


class GivenUp(Exception):
    """Nobody waits for the result any more."""


@contextlib.contextmanager
def interruptible(given_up: threading.Event) -> Iterator[None]:
    """Around work that ends with GivenUp soon after the event is set."""
    token = _given_up.set(given_up)
    try:
        yield
    finally:
        _given_up.reset(token)


def check() -> None:
    """Called between steps of a fraction of a second. Raises GivenUp; outside such work, never."""
    given_up = _given_up.get()
    if given_up is not None and given_up.is_set():
        raise GivenUp
