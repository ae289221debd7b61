"""Proof that nothing leaked: each page and row has one owner, each live request one place."""

from __future__ import annotations

from engine.errors import IntegrityError
from engine.scheduler.scheduler import Scheduler
from engine.scheduler.sequence import State


def check(scheduler: Scheduler) -> None:
    """Raise IntegrityError, naming the figures, if pages, rows or states do not add up."""
    _check_states(scheduler)
    _check_pages(scheduler)
    _check_rows(scheduler)


def _require(truth: bool, message: str) -> None:
    if not truth:
        raise IntegrityError(message)


def _check_states(scheduler: Scheduler) -> None:
    waiting, running = list(scheduler.waiting), scheduler.running
    for sequence in waiting:
        _require(
            sequence.state is State.WAITING and not sequence.pages and sequence.row == -1,
            f"request {sequence.request} waits but holds pages or a row",
        )
    for sequence in running:
        _require(sequence.running, f"request {sequence.request} runs as {sequence.state.value}")
        _require(
            0 <= sequence.computed < len(sequence.tokens),
            f"request {sequence.request}: {sequence.computed} of {len(sequence.tokens)} computed",
        )
        _require(
            sequence.completion_tokens < sequence.max_tokens,
            f"request {sequence.request} runs beyond its {sequence.max_tokens} tokens",
        )
    for place in (waiting, running):
        arrivals = [sequence.arrival for sequence in place]
        _require(arrivals == sorted(set(arrivals)), "a queue is out of order")
    placed = {sequence.request for sequence in [*waiting, *running]}
    live = {sequence.request for sequence in scheduler.live}
    _require(placed == live, f"live requests {live} are not those queued or running: {placed}")


def _check_pages(scheduler: Scheduler) -> None:
    pages = scheduler.pages
    owned = [page for sequence in scheduler.running for page in sequence.pages]
    _require(len(owned) == len(set(owned)), "a KV page has two owners")
    _require(
        len(owned) + pages.available == pages.total,
        f"{len(owned)} KV pages owned and {pages.available} free of {pages.total}",
    )
    for sequence in scheduler.running:
        _require(
            len(sequence.pages) >= pages.count_for(sequence.computed),
            f"{sequence.request}: {sequence.computed} computed, {len(sequence.pages)} pages",
        )
        _require(
            len(sequence.pages) <= pages.count_for(len(sequence.tokens)),
            f"request {sequence.request} holds {len(sequence.pages)} pages, more than it needs",
        )


def _check_rows(scheduler: Scheduler) -> None:
    rows = scheduler.rows
    owned = [sequence.row for sequence in scheduler.running]
    _require(
        len(owned) == len(set(owned)) and -1 not in owned, "a state row has two owners or none"
    )
    _require(
        len(owned) + rows.available == rows.total,
        f"{len(owned)} state rows owned and {rows.available} free of {rows.total}",
    )
