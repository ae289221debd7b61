"""`--record FILE`: one JSON line a request, to send it again later or to study it. Off by default.

A line has what was asked and what came of it: the body, token ids, times. No header is in it, and
no key: where one stands in a body (an agent that reads its own configuration shows it), `***` is
written in its place. A body that spells one in pieces (in several parts of a content, or in token
ids) is left out, and so is that of a refused request: there is nothing to send again, and it may
hold anything.

Token ids spell the whole prompt, so they are written only beside a body that is written too, shows
all of that prompt, and has no key in it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO

import msgspec
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine import api_keys
from engine.errors import InvalidRequest

log = logging.getLogger("headrace.server")

_HIDDEN = "***"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_JSON_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"')
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.)|$)", re.DOTALL)
_MOST_WORK = 1 << 27
"""Of looking through a body for keys, in characters read: about a second of the event loop."""
_ESCAPE_WORK = 10
"""So many characters are read while one escape is undone."""


class GenerationRecord(msgspec.Struct, kw_only=True):
    """One answer. Times are seconds since the request began; null: it did not come to it."""

    prompt_tokens: int
    cached_tokens: int | None = None
    completion_tokens: int = 0
    prompt_token_ids: list[int] | None
    output_token_ids: list[int] | None = msgspec.field(default_factory=list)
    """Without those that were sampled past a stop string."""
    submitted_s: float
    first_token_s: float | None = None
    end_s: float | None = None
    finish_reason: str | None = None


class RequestRecord(msgspec.Struct, kw_only=True):
    """One line."""

    time: float
    """When the request came, in seconds since 1970."""
    endpoint: str
    body: msgspec.Raw | None = None
    status: int = 0
    complete: bool = False
    """Whether the answer was sent to its end."""
    first_byte_s: float | None = None
    total_s: float = 0.0
    generations: list[GenerationRecord] = msgspec.field(default_factory=list)


class Recording:
    """A request while it runs."""

    def __init__(self, endpoint: str) -> None:
        self._began = time.monotonic()
        self.record = RequestRecord(time=time.time(), endpoint=endpoint)
        self.body = b""
        self.spelled: list[str] = []
        """What the body says in token ids."""
        self.unseen = False
        """The prompt has text that the body does not show, and that may hold a key."""

    def elapsed(self) -> float:
        return round(time.monotonic() - self._began, 6)

    def generation(self, prompt: list[int]) -> GenerationNotes:
        record = GenerationRecord(
            prompt_tokens=len(prompt), prompt_token_ids=prompt, submitted_s=self.elapsed()
        )
        self.record.generations.append(record)
        return GenerationNotes(record, self.elapsed)

    def line(self, secrets: Sequence[str]) -> bytes:
        """`secrets`: what must not be in it."""
        record = self.record
        record.total_s = self.elapsed()
        hidden = True
        if self.body and 0 < record.status < 400:
            body = msgspec.json.format(self.body.removeprefix(_BYTE_ORDER_MARK), indent=-1)
            search = _Search(secrets)
            shown = _JSON_STRING.sub(lambda found: search.masked(found.group()), body)
            pieces = ["".join(self.spelled), *_joined_by_field(shown)]
            if not any(map(search.finds_in, pieces)) and not search.gave_up:
                record.body = msgspec.Raw(shown)
                hidden = shown != body
        if hidden or self.unseen:
            for generation in record.generations:
                generation.prompt_token_ids = generation.output_token_ids = None
        return msgspec.json.encode(record) + b"\n"


class _Search:
    """For keys in the texts of one body, also within JSON in them, such as a call's arguments.

    Where that would hold up the event loop, it gives up: every text counts as one with a key.
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        self._secrets = secrets
        self._work_left = _MOST_WORK

    @property
    def gave_up(self) -> bool:
        return self._work_left < 0

    def masked(self, string: bytes) -> bytes:
        """A JSON string without keys."""
        text = msgspec.json.decode(string, type=str)
        shown = self._without_keys(text)
        if self.finds_in(shown):
            shown = _HIDDEN
        return string if shown == text else msgspec.json.encode(shown)

    def finds_in(self, text: str) -> bool:
        while self._without_keys(text) == text:
            escapes = text.count("\\")
            if not escapes:
                return False
            self._work_left -= len(text) + escapes * _ESCAPE_WORK
            if self.gave_up:
                return True
            text = _ESCAPE.sub(_plain, text)  # shorter by each escape, so this ends
        return True

    def _without_keys(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, _HIDDEN)
        return api_keys.SHAPE.sub(_HIDDEN, text)


def _joined_by_field(body: bytes) -> Iterable[str]:
    """The texts of all fields of one name in turn, as if they were one: parts of a content, and
    strings in a list, of which a field that is given twice is no exception."""
    texts: dict[str, list[str]] = {}
    name = ""
    for found in _JSON_STRING.finditer(body):
        text = msgspec.json.decode(found.group(), type=str)
        if body.startswith(b":", found.end()):
            name = text
        else:
            texts.setdefault(name, []).append(text)
    return map("".join, texts.values())


def _plain(escape: re.Match[str]) -> str:
    return chr(int(escape[1], 16)) if escape[1] else escape[2] or ""


class GenerationNotes:
    """Takes notes of one answer while it is made."""

    def __init__(self, record: GenerationRecord, elapsed: Callable[[], float]) -> None:
        self._record = record
        self._elapsed = elapsed

    def admitted(self, cached_tokens: int) -> None:
        self._record.cached_tokens = cached_tokens

    def sampled(self, token: int) -> None:
        record = self._record
        if record.first_token_s is None:
            record.first_token_s = self._elapsed()
        record.completion_tokens += 1
        if record.output_token_ids is not None:
            record.output_token_ids.append(token)

    def ended(self, reason: str) -> None:
        self._record.end_s = self._elapsed()
        self._record.finish_reason = reason


_current: ContextVar[Recording | None] = ContextVar("recording", default=None)


def current() -> Recording | None:
    """Of the request that this task, or the one that started it, answers; None: not recorded."""
    return _current.get()


def note_unseen() -> None:
    """The prompt of this request has text that its body does not show."""
    if recording := current():
        recording.unseen = True


def note_token_ids(tokens: list[int], decode: Callable[[list[int]], str]) -> None:
    """The body of this request has these token ids."""
    if recording := current():
        recording.spelled.append(decode(tokens))


class Recorder:
    """The file. Opening it raises InvalidRequest."""

    def __init__(self, path: Path, secrets: Callable[[], Sequence[str]]) -> None:
        """`secrets`: the keys that are known as they are."""
        self._path = path
        self._secrets = secrets
        try:
            self._file = _opened(path)
        except OSError as error:
            raise InvalidRequest(
                f"--record {path} cannot be written: {error.strerror}.", param="--record"
            ) from error

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()

    def wrapped(self, app: ASGIApp) -> ASGIApp:
        """The endpoint, with a line for every POST to it."""

        async def recorded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["method"] != "POST":
                await app(scope, receive, send)
                return
            recording = Recording(scope["path"])
            with self._kept(recording, Headers(scope=scope)):
                await app(scope, *_watched(receive, send, recording))

        return recorded

    @contextlib.contextmanager
    def _kept(self, recording: Recording, headers: Headers) -> Iterator[None]:
        token = _current.set(recording)
        try:
            yield
        finally:
            _current.reset(token)
            self._write(recording.line(self._in(headers)))

    def _in(self, headers: Headers) -> list[str]:
        """What may be a key of this request or of this server. Words that clients without a key
        send in its place are too short to be one."""
        sent = [headers.get("x-api-key", ""), headers.get("authorization", "").partition(" ")[2]]
        texts = [each.strip().encode("latin-1").decode(errors="replace") for each in sent]
        return [*filter(None, self._secrets()), *(each for each in texts if len(each) > 16)]

    def _write(self, line: bytes) -> None:
        if self._file.closed:
            return
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            log.error("nothing more is recorded in %s: %s", self._path, error.strerror)
            self.close()


def _opened(path: Path) -> BinaryIO:
    """The file at its end; one on a disk is its owner's alone from now on. Raises OSError."""
    without_waiting = getattr(os, "O_NONBLOCK", 0)  # for whoever reads a pipe
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | without_waiting
    with contextlib.ExitStack() as undo:
        file = undo.enter_context(os.fdopen(os.open(path, flags, 0o600), "ab"))
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISFIFO(mode):
            raise OSError(errno.EINVAL, "it is a pipe, whose reader may be slow")
        if os.name != "nt" and stat.S_ISREG(mode):
            os.fchmod(file.fileno(), 0o600)  # of a file that was there
        undo.pop_all()
    return file


def _watched(receive: Receive, send: Send, recording: Recording) -> tuple[Receive, Send]:
    record = recording.record
    hung_up = False

    async def heard() -> Message:
        nonlocal hung_up
        message = await receive()
        # Also said once all was sent: only what is sent after it goes nowhere.
        hung_up = hung_up or message["type"] == "http.disconnect"
        return message

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            record.status = message["status"]
        nowhere = hung_up
        await send(message)
        if message["type"] == "http.response.body" and not nowhere:
            if record.first_byte_s is None:
                record.first_byte_s = recording.elapsed()
            record.complete = not message.get("more_body", False)

    return heard, sent
