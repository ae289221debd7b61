"""What the engine is asked for, and what it answers: `POST /v1/engine/budget`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import msgspec

from app.core.completion import error_message

PATH = "/v1/engine/budget"
NOT_FOUND = 404


class BudgetRequest(msgspec.Struct, frozen=True, kw_only=True):
    vram_bytes: int
    """What the engine may hold from its next safe point on."""
    cause: str
    """A sentence for the engine's log."""


class Outcome(StrEnum):
    APPLIED = "applied"
    UNSUPPORTED = "unsupported"
    """This engine cannot resize while it runs."""
    FAILED = "failed"


@dataclass(frozen=True)
class BudgetAnswer:
    outcome: Outcome
    applied_bytes: int = 0
    """What the engine may hold now: more than was asked where that is its least."""
    state: str = ""
    """The engine's own word for how it goes on."""
    why: str = ""
    """Of a failure, a sentence."""


class _Body(msgspec.Struct):
    applied_bytes: int
    state: str = ""


class BudgetClient(Protocol):
    """The way to the engine."""

    def send(self, request: BudgetRequest, answered: Callable[[BudgetAnswer], None]) -> None:
        """Ask the engine; `answered` is called once, at any time, also where nothing answers."""


def read_answer(status: int, body: bytes, error: str = "") -> BudgetAnswer:
    """The engine's answer to a request. `status` 0 where none came; `error` says why then."""
    if status == NOT_FOUND:
        return BudgetAnswer(Outcome.UNSUPPORTED)
    if not 200 <= status < 300:
        why = error_message(body, error or f"The engine answered with status {status}.")
        return BudgetAnswer(Outcome.FAILED, why=why)
    try:
        answer = msgspec.json.decode(body, type=_Body)
    except msgspec.MsgspecError as wrong:
        why = f"The engine's answer cannot be read ({wrong})."
        return BudgetAnswer(Outcome.FAILED, why=why)
    return BudgetAnswer(Outcome.APPLIED, answer.applied_bytes, answer.state)
