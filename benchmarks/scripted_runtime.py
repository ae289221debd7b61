"""The runtime of endpoint.py: `python scripted_runtime.py VOCABULARY RATE TOKENS`.

Answers of one token come at once; the tokens of all others in common steps, RATE times a second.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engine.messages import (
    HEADER_BYTES,
    Admitted,
    AnyCommand,
    AnyEvent,
    Cancel,
    Finished,
    Ready,
    Sampled,
    StepEnded,
    StepStarted,
    Submit,
    body_length,
    pack,
    unpack_commands,
)

CONTEXT = 1 << 16


class Script:
    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens
        self._live: dict[int, tuple[Submit, int]] = {}
        self._steps = 0

    def take(self, command: AnyCommand) -> list[AnyEvent]:
        if isinstance(command, Cancel):
            gone = self._live.pop(command.request, None)
            return [] if gone is None else [_end(gone[0], gone[1], "cancelled")]
        if not isinstance(command, Submit):
            return []
        admitted = Admitted(request=command.request, prompt_tokens=len(command.tokens))
        if command.max_tokens > 1:
            self._live[command.request] = (command, 0)
            return [admitted]
        only = Sampled(request=command.request, token=self._tokens[0])
        return [admitted, only, _end(command, 1, "length")]

    def step(self) -> list[AnyEvent]:
        """A token for every stream."""
        if not self._live:
            return []
        self._steps += 1
        events: list[AnyEvent] = [StepStarted(step=self._steps)]
        for number, (submit, made) in list(self._live.items()):
            events.append(Sampled(request=number, token=self._tokens[made % len(self._tokens)]))
            self._live[number] = (submit, made + 1)
            if made + 1 == submit.max_tokens:
                del self._live[number]
                events.append(_end(submit, made + 1, "length"))
        return [*events, StepEnded(step=self._steps, seconds=0.0)]


def _end(submit: Submit, made: int, reason: str) -> Finished:
    counts = {"prompt_tokens": len(submit.tokens), "completion_tokens": made}
    return Finished(request=submit.request, reason=reason, **counts)


def commands() -> list[AnyCommand]:
    """Of one frame, read without a buffer, which `select` would not see."""
    return unpack_commands(_read(body_length(_read(HEADER_BYTES))))


def _read(count: int) -> bytes:
    parts = b""
    while len(parts) < count:
        part = os.read(0, count - len(parts))
        if not part:
            raise SystemExit(0)
        parts += part
    return parts


def say(events: list[AnyEvent]) -> None:
    if events:
        sys.stdout.buffer.write(pack(events))
        sys.stdout.buffer.flush()


def main(vocab_size: int, rate: float, tokens: list[int]) -> None:
    commands()  # Configure
    ready = Ready(
        family="scripted",
        device="cpu",
        dtype="float32",
        context_tokens=CONTEXT,
        kv_tokens=CONTEXT,
        vocab_size=vocab_size,
        load_seconds=0.0,
    )
    say([ready])
    script = Script(tokens)
    next_step = time.monotonic()
    while True:
        wait = max(0.0, next_step - time.monotonic())
        if select.select([0], [], [], wait)[0]:
            say([event for command in commands() for event in script.take(command)])
        elif time.monotonic() >= next_step:
            say(script.step())
            next_step += 1 / rate


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), json.loads(sys.argv[3]))
