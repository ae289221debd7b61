"""`headrace chat`: a conversation in the terminal, without HTTP in between."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from engine.chat.conversation import Message
from engine.chat.model_files import locate
from engine.chat.text_model import TextModel, load_text_model
from engine.errors import HeadraceError
from engine.messages import Progress, Ready, Sampling
from engine.options import EngineOptions
from engine.server.context_limit import explained
from engine.server.generation import Ended, Generation, generate
from engine.server.output import Delta
from engine.server.runtime_link import RuntimeLink

_CTRL_C = "\x03"
"""Stands among the typed lines, which end with a line break."""
_INTERRUPTED = 130


@dataclass(frozen=True)
class ChatOptions:
    engine: EngineOptions
    prompt: str | None = None
    """None: read turns from the terminal until it ends."""
    system: str = ""
    max_tokens: int = 0
    """0: as many as the context has room for."""
    sampling: dict[str, Any] = field(default_factory=dict)
    """What the person set; the rest is the model's default."""
    step_timeout_s: float = 120.0


async def chat(options: ChatOptions) -> int:
    """Exit code. Raises the typed error that kept the model from loading or answering."""
    place = locate(options.engine.model)
    engine = msgspec.structs.replace(options.engine, model=str(place.path))
    link = RuntimeLink(engine, step_timeout_s=options.step_timeout_s)
    link.start()
    try:
        text = await asyncio.to_thread(load_text_model, place)
        progress = _ProgressLine()
        ready = await link.wait_loaded(lambda: progress.show(link.progress))
        progress.clear()
        talk = _Talk(options, link, text, ready)
        if options.prompt is not None:
            await talk.turn(options.prompt)
        else:
            return await talk.loop()
    finally:
        await link.close()
    return 0


class _Talk:
    def __init__(
        self, options: ChatOptions, link: RuntimeLink, text: TextModel, ready: Ready
    ) -> None:
        self._options = options
        self._link = link
        self._text = text
        self._ready = ready
        self._sampling: Sampling = msgspec.structs.replace(text.defaults, **options.sampling)
        self._messages: list[Message] = []
        self._answering: asyncio.Task[None] | None = None
        if options.system:
            self._messages.append({"role": "system", "content": options.system})

    async def turn(self, prompt: str) -> None:
        """Print the answer as it comes, and remember both sides."""
        # Bytes that were no text came in as lone surrogates, which no tokenizer takes.
        prompt = prompt.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        asked = [*self._messages, {"role": "user", "content": prompt}]
        context = self._ready.context_tokens
        with explained(self._ready, self._link.options):
            tokens = self._text.chat_prompt(asked, context_tokens=context).tokens
        room = context - len(tokens)
        generation = Generation(
            prompt=tokens,
            max_tokens=min(self._options.max_tokens or room, room),
            sampling=self._sampling,
            stop_tokens=self._text.end_tokens,
        )
        pieces: list[str] = []
        try:
            async for event in generate(self._link, self._text.tokenizer, generation):
                match event:
                    case Delta():
                        pieces.append(event.text)
                        print(event.text, end="", flush=True)
                    case Ended():
                        print(flush=True)
        except asyncio.CancelledError:
            print(flush=True)
            if not pieces:
                raise  # a question without an answer would stand before the next one
        self._messages = [*asked, {"role": "assistant", "content": "".join(pieces)}]

    async def loop(self) -> int:
        """Turns until the end of input or /quit; an error ends the turn, not the talk.

        In a terminal Ctrl-C ends an answer; at the prompt, twice in a row, the talk. Returns the
        exit code.
        """
        shown = sys.stdin.isatty()
        lines = _typed_lines()
        if not shown:
            return await self._turns(lines, shown=False)
        keys = "Ctrl-C stops an answer, /new starts over, /quit or Ctrl-D ends."
        print(f"{self._text.name}: {keys}", file=sys.stderr)

        def interrupted() -> None:
            if self._answering is not None:
                self._answering.cancel()
            else:
                lines.put_nowait(_CTRL_C)

        with _interrupts(interrupted):
            return await self._turns(lines, shown=True)

    async def _turns(self, lines: asyncio.Queue[str], *, shown: bool) -> int:
        line = ""
        while True:
            if shown:
                print("> ", end="", file=sys.stderr, flush=True)
            before, line = line, await lines.get()
            if line == _CTRL_C:
                print(file=sys.stderr)
                if before == _CTRL_C:
                    return _INTERRUPTED
                print("Once more, /quit or Ctrl-D ends.", file=sys.stderr)
            elif not line or line.strip() == "/quit":
                return 0
            elif line.strip() == "/new":
                self._messages = [m for m in self._messages if m["role"] == "system"]
            elif line.strip():
                self._answering = asyncio.create_task(self._tried(line.strip()))
                await asyncio.wait({self._answering})
                answered, self._answering = self._answering, None
                if not answered.cancelled():
                    answered.result()

    async def _tried(self, prompt: str) -> None:
        """A turn; after an error, until the model answers again."""
        try:
            await self.turn(prompt)
        except HeadraceError as error:
            print(f"error: {error.message}", file=sys.stderr)
            if self._link.state == "failed":
                raise
            self._ready = await self._link.wait_loaded()


@contextlib.contextmanager
def _interrupts(heard: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C calls `heard` in the loop, and does nothing else."""
    loop = asyncio.get_running_loop()
    before = signal.signal(signal.SIGINT, lambda *_: loop.call_soon_threadsafe(heard))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _typed_lines() -> asyncio.Queue[str]:
    """Lines of standard input as they come; "" at its end.

    Read by a daemon thread: nothing interrupts a thread that waits for the terminal, and the
    program must be able to end there too.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[str] = asyncio.Queue()

    def read() -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            for line in _stdin_lines():
                loop.call_soon_threadsafe(queue.put_nowait, line)
            loop.call_soon_threadsafe(queue.put_nowait, "")

    threading.Thread(target=read, name="terminal", daemon=True).start()
    return queue


def _stdin_lines() -> Iterator[str]:
    if sys.platform == "win32":
        # The console speaks UTF-16, which Python's own stream knows.
        yield from sys.stdin
        return
    # Not through Python's stream: a thread that waits in there holds its lock, without which the
    # interpreter cannot end.
    decoder = codecs.getincrementaldecoder(sys.stdin.encoding)("replace")
    handle, rest = sys.stdin.fileno(), ""
    while raw := os.read(handle, 1 << 16):
        *lines, rest = (rest + decoder.decode(raw)).split("\n")
        yield from (line + "\n" for line in lines)
    if rest:
        yield rest


class _ProgressLine:
    """Loading shown on one line of a terminal; nothing where stderr is a file or a pipe."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()

    def show(self, progress: Progress) -> None:
        if self._shown:
            share = f" {100 * progress.done // progress.total} %" if progress.total else ""
            print(f"\r\x1b[Kloading: {progress.phase}{share}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
