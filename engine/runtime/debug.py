"""Faults on purpose, for the tests of isolation and of the watchdog, and what measurements set. The
one place that reads them.

HEADRACE_DEBUG_STEP_SECONDS  every step sleeps so long before it computes
HEADRACE_DEBUG_FAIL_TOKEN    a step over a request whose prompt has this token id raises
HEADRACE_DEBUG_STREAM        how a prompt's experts come: see experts/regime.py
HEADRACE_DEBUG_BREAK_TOKEN   a step over one that has this token id breaks the device
HEADRACE_DEBUG_TAKE_BYTES    a step over a prompt takes so much of torch's memory beside its own
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import cast, get_args

import torch

from engine.experts.regime import StreamMode
from engine.paths import debug_setting
from engine.scheduler.sequence import Plan


@dataclass(frozen=True)
class DebugFaults:
    step_seconds: float = 0.0
    fail_token: int | None = None
    stream: StreamMode = "auto"
    break_token: int | None = None
    take_bytes: int = 0

    @staticmethod
    def read() -> DebugFaults:
        fail, breaks = debug_setting("fail_token"), debug_setting("break_token")
        return DebugFaults(
            step_seconds=float(debug_setting("step_seconds", "0")),
            fail_token=int(fail) if fail else None,
            break_token=int(breaks) if breaks else None,
            stream=_mode(debug_setting("stream", "auto")),
            take_bytes=int(debug_setting("take_bytes", "0")),
        )

    def apply(self, plan: Plan, device: torch.device) -> torch.Tensor | None:
        """Returns what is to be held while the step computes."""
        if self.step_seconds:
            time.sleep(self.step_seconds)
        if self._has(plan, self.fail_token):
            raise RuntimeError(f"token {self.fail_token} is set to fail")
        if self._has(plan, self.break_token):
            _break(device)
        if self.take_bytes and plan.prefill_tokens:
            return torch.empty(self.take_bytes, dtype=torch.uint8, device=device)
        return None

    def _has(self, plan: Plan, token: int | None) -> bool:
        sequences = [piece.sequence for piece in plan.pieces]
        return token is not None and any(
            token in sequence.tokens[: sequence.prompt_tokens] for sequence in sequences
        )


def _break(device: torch.device) -> None:
    """As a kernel does that reads beyond its memory: on a GPU this call itself tells nothing."""
    if device.type != "cuda":
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")
    torch.zeros(1, device=device)[torch.full((1,), 1 << 40, device=device)]


def _mode(name: str) -> StreamMode:
    for mode in get_args(StreamMode):
        if mode == name:
            return cast("StreamMode", mode)
    raise ValueError(f"HEADRACE_DEBUG_STREAM is {name}, not one of {get_args(StreamMode)}")
