"""The process that renders chat templates: `python -m engine.chat.render_process`.

It takes questions (engine.chat.render_frames) on stdin, one at a time, and answers each on stdout.
It knows no model and keeps nothing but compiled templates, so that it can be killed at any time.
"""

from __future__ import annotations

import functools
import json
import os
import queue
import signal
import sys
import threading
from pathlib import Path
from typing import BinaryIO

import jinja2
import jinja2.nodes as nodes
from jinja2.exceptions import SecurityError

from engine.chat.render_frames import (
    HEADER_BYTES,
    MAX_PROMPT_CHARS,
    Outcome,
    allowed_memory,
    answer,
    body_length,
)
from engine.chat.sandbox import TemplateRefusal, template_environment
from engine.child_process import claim_pipes, die_with_parent

_TEMPLATES = 8
_ALONE_SECONDS = 120.0
"""For one question. Who asks ends this process long before, and so does the closed pipe; but a
single step of a template keeps the thread that watches the pipe from running."""
_TOO_LONG = f"the prompt has more than {MAX_PROMPT_CHARS} characters"


class _Memory:
    """A limit that the kernel keeps, where it can (Linux); elsewhere the parent looks."""

    def __init__(self) -> None:
        self._before = 0
        if sys.platform == "linux":
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            self._before = pages * os.sysconf("SC_PAGE_SIZE")

    def limit(self, question_bytes: int) -> None:
        if sys.platform == "linux":
            import resource

            _, hard = resource.getrlimit(resource.RLIMIT_AS)
            most = self._before + allowed_memory(question_bytes)
            if hard != resource.RLIM_INFINITY:
                most = min(most, hard)
            resource.setrlimit(resource.RLIMIT_AS, (most, hard))


_environment = functools.cache(template_environment)


@functools.lru_cache(_TEMPLATES)
def _compiled(source: str) -> jinja2.Template:
    return _environment().from_string(source)


def _rendered(question: bytearray) -> tuple[Outcome, str]:
    asked = json.loads(question)
    template = _compiled(asked["template"])
    if asked["variables"] is None:
        found = _environment().parse(asked["template"]).find_all(nodes.Name)
        return Outcome.RENDERED, " ".join(sorted({name.name for name in found}))
    pieces, size = [], 0
    for piece in template.generate(asked["variables"]):
        size += len(piece)
        if size > MAX_PROMPT_CHARS:
            return Outcome.STOPPED, _TOO_LONG
        pieces.append(piece)
    return Outcome.RENDERED, "".join(pieces)


def _outcome(question: bytearray) -> tuple[Outcome, str]:
    """Raises MemoryError."""
    try:
        return _rendered(question)
    except TemplateRefusal as error:
        return Outcome.REFUSED, str(error)
    except jinja2.TemplateSyntaxError as error:
        return Outcome.MISTAKE, f"{error.lineno}:{error.message}"
    except SecurityError as error:
        return Outcome.FORBIDDEN, str(error)
    except MemoryError:
        raise
    except RecursionError:
        return Outcome.FAILED, "it nests too deeply"
    except Exception as error:  # noqa: BLE001 - a template is a program, and may raise anything
        return Outcome.FAILED, str(error) or type(error).__name__


def _answered(question: bytearray) -> tuple[bytes, bytes]:
    """A frame. It is made within the limit of memory too, and what an error says may be long."""
    try:
        outcome, text = _outcome(question)
        if len(text) > MAX_PROMPT_CHARS:
            outcome, text = Outcome.STOPPED, _TOO_LONG
        return answer(outcome, text)
    except MemoryError:
        return answer(Outcome.STOPPED, "it takes too much memory")


def _in_time(question: bytearray) -> tuple[bytes, bytes]:
    if sys.platform == "win32":  # there the parent's job ends this process
        return _answered(question)
    signal.setitimer(signal.ITIMER_REAL, _ALONE_SECONDS)
    frame = _answered(question)
    signal.setitimer(signal.ITIMER_REAL, 0)
    return frame


def _receive(fd: int, questions: queue.SimpleQueue[bytearray]) -> None:
    """Move questions into the queue; end this process, whatever it does, with the pipe."""
    memory = _Memory()
    with os.fdopen(fd, "rb") as pipe:
        while len(header := pipe.read(HEADER_BYTES)) == HEADER_BYTES:
            length = body_length(header)
            memory.limit(length)
            question = bytearray(length)
            if pipe.readinto(question) < length:
                break
            questions.put(question)
    os._exit(0)


def _send(pipe: BinaryIO, frame: tuple[bytes, bytes]) -> None:
    for part in frame:
        pipe.write(part)
    pipe.flush()


def main() -> None:
    read_fd, write_fd = claim_pipes()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    questions: queue.SimpleQueue[bytearray] = queue.SimpleQueue()
    _environment()
    if sys.platform != "win32":
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, whatever it does
    threading.Thread(target=_receive, args=(read_fd, questions), daemon=True).start()
    with os.fdopen(write_fd, "wb") as pipe:
        _send(pipe, answer(Outcome.RENDERED, ""))  # says that the process is ready
        while True:
            # Nothing is kept in a name: the next question has all the memory.
            _send(pipe, _in_time(questions.get()))


if __name__ == "__main__":
    main()
