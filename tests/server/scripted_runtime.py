"""A process that speaks the runtime's frames and does, on request, what a sound runtime never does.

`python scripted_runtime.py SCRIPT [FILE]`; FILE counts its lives. Commands that arrive are
noted on stderr.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from engine.errors import OutOfMemory
from engine.messages import (
    HEADER_BYTES,
    Admitted,
    AnyCommand,
    AnyEvent,
    Cancel,
    Fatal,
    Finished,
    Progress,
    Ready,
    Sampled,
    Stats,
    StatsReport,
    StepStarted,
    Submit,
    body_length,
    pack,
    unpack_commands,
)

READY = Ready(
    family="scripted",
    device="cpu",
    dtype="float32",
    context_tokens=64,
    kv_tokens=64,
    vocab_size=9,
    load_seconds=0.0,
)


SECOND_END = 0
"""Of the tiny model: its generation_config names it after the one that its chats end with."""


def say(*events: AnyEvent) -> None:
    sys.stdout.buffer.write(pack(list(events)))
    sys.stdout.buffer.flush()


def commands() -> list[AnyCommand]:
    header = sys.stdin.buffer.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        raise SystemExit(0)
    return unpack_commands(sys.stdin.buffer.read(body_length(header)))


def main(script: str, memory: Path) -> None:
    commands()  # Configure
    lives = int(memory.read_text()) if memory.is_file() else 0
    memory.write_text(str(lives + 1)) if memory.name else None
    say(Progress(phase="reading", done=1, total=2))
    if script == "dies-loading":
        print("no such kernel", file=sys.stderr)
        raise SystemExit(9)
    if script == "too-large":
        say(Fatal(error=OutOfMemory("needs 9 bytes, has 4", hint="Buy more.").record()))
        raise SystemExit(1)
    if script == "short-of-memory" and lives in (1, 2, 3):
        say(Fatal(error=OutOfMemory("needs 9 bytes, has 4").record()))
        raise SystemExit(1)
    if script == "logs":
        lines = "a stray line\nWARNING too warm\nERROR too hot\nTraceback of it\nINFO well again"
        print(lines, file=sys.stderr, flush=True)
    if script == "late-ready":
        time.sleep(0.5)
    say(READY)
    if script == "dies-idle":
        raise SystemExit(7)
    if script == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    while True:
        for command in commands():
            print(f"took {command}", file=sys.stderr, flush=True)
            if isinstance(command, Submit):
                run(script, command)
            if isinstance(command, Cancel):
                say(
                    Finished(
                        request=command.request,
                        reason="cancelled",
                        prompt_tokens=1,
                        completion_tokens=1,
                    )
                )


def run(script: str, submit: Submit) -> None:
    number = submit.request
    if script == "silent":
        return
    say(Admitted(request=number, prompt_tokens=len(submit.tokens)))
    match script:
        case "waits":
            say(Sampled(request=number, token=5))
        case "stuck":
            say(StepStarted(step=7), Sampled(request=number, token=5))
        case "leaves-child":
            child = subprocess.Popen(["sleep", "30"], start_new_session=True)
            print(f"left {child.pid}", file=sys.stderr, flush=True)
            say(Sampled(request=number, token=5))
            os.abort()
        case "finishes":
            say(*(Sampled(request=number, token=token) for token in submit.tokens))
            counts = {"prompt_tokens": len(submit.tokens), "completion_tokens": len(submit.tokens)}
            say(Finished(request=number, reason="length", **counts))
        case "writes-past-ends":
            counts = {"prompt_tokens": len(submit.tokens)}
            for made, token in enumerate((40, 41, SECOND_END, 42)):
                if token in submit.stop_tokens:
                    say(
                        Finished(
                            request=number,
                            reason="stop",
                            completion_tokens=made,
                            stop_token=token,
                            **counts,
                        )
                    )
                    return
                say(Sampled(request=number, token=token))
            say(Finished(request=number, reason="length", completion_tokens=4, **counts))
        case "dies" | "short-of-memory":
            counted = Stats(requests_finished=2, decode_tokens=30, kv_tokens_used=16)
            say(StatsReport(stats=counted), Sampled(request=number, token=5))
            os.abort()
        case "babbles":
            sys.stdout.buffer.write(b"\xff" * 64)
            sys.stdout.buffer.flush()
            time.sleep(30)
        case _:
            raise SystemExit(f"unknown script {script}")


if __name__ == "__main__":
    main(sys.argv[1], Path(*sys.argv[2:3]))
