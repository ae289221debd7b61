"""Faults on purpose, for the tests of isolation and of the watchdog. The one place that reads them.

HEADRACE_DEBUG_STEP_SECONDS  every step sleeps so long before it computes
HEADRACE_DEBUG_FAIL_TOKEN    a step over a request whose prompt has this token id raises
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from engine.paths import debug_setting
from engine.scheduler.sequence import Plan


@dataclass(frozen=True)
class DebugFaults:
    step_seconds: float = 0.0
    fail_token: int | None = None

    @staticmethod
    def read() -> DebugFaults:
        token = debug_setting("fail_token")
        return DebugFaults(
            step_seconds=float(debug_setting("step_seconds", "0")),
            fail_token=int(token) if token else None,
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
