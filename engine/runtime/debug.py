"""Faults on purpose, for the tests of isolation and of the watchdog, and what measurements set. The
one place that reads them.

HEADRACE_DEBUG_STEP_SECONDS  every step sleeps so long before it computes
HEADRACE_DEBUG_FAIL_TOKEN    a step over a request whose prompt has this token id raises
HEADRACE_DEBUG_STREAM        how a prompt's experts come: see experts/regime.py
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import cast, get_args

from engine.experts.regime import StreamMode
from engine.paths import debug_setting
from engine.scheduler.sequence import Plan


@dataclass(frozen=True)
class DebugFaults:
    step_seconds: float = 0.0
    fail_token: int | None = None
    stream: StreamMode = "auto"

    @staticmethod
    def read() -> DebugFaults:
        token = debug_setting("fail_token")
        return DebugFaults(
            step_seconds=float(debug_setting("step_seconds", "0")),
            fail_token=int(token) if token else None,
            stream=_mode(debug_setting("stream", "auto")),
        )

    def apply(self, plan: Plan) -> None:
        if self.step_seconds:
            time.sleep(self.step_seconds)
        if self.fail_token is None:
            return
        for piece in plan.pieces:
            sequence = piece.sequence
            if self.fail_token in sequence.tokens[: sequence.prompt_tokens]:
                raise RuntimeError(f"token {self.fail_token} is set to fail")


def _mode(name: str) -> StreamMode:
    for mode in get_args(StreamMode):
        if mode == name:
            return cast("StreamMode", mode)
    raise ValueError(f"HEADRACE_DEBUG_STREAM is {name}, not one of {get_args(StreamMode)}")
