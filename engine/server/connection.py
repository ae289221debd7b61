"""One HTTP connection: what a client owes it and by when, and refusals of what is not HTTP.

uvicorn answers broken requests in plain text, and waits for ever for the rest of one that has
begun. Here a client that falls silent is refused with 408, and what h11 cannot read with h11's own
status, both in the protocol's JSON. A big upload may take its time: it must only not stop.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import sys
from http import HTTPStatus
from typing import Literal

import h11
from starlette.datastructures import Headers
from uvicorn.protocols.http.h11_impl import H11Protocol

from engine.errors import HeadraceError
from engine.server.http import error_content
from engine.server.targets import split_target

log = logging.getLogger("headrace.server")

KEEP_ALIVE_S = 75.0
"""An idle connection is kept longer than clients keep it, so that none meets one just closed."""
HEAD_S = 30.0
"""For the whole of a request's head, from its first byte."""
HEAD_BYTES = 64 << 10
UNFINISHED_HEAD_BYTES = HEAD_BYTES + len(b"\r\n\r\n")
"""As long as one that may still end within HEAD_BYTES: h11's limit."""
BODY_S = 30.0
"""In which a body must grow by BODY_LEAST_BYTES or end: one that trickles holds a request up."""
BODY_LEAST_BYTES = 1024
LINGER_S = 2.0
"""Time that a refused client gets to read why, before its connection is gone."""

_END_OF_HEAD = re.compile(rb"\n\r?\n")
_QUOTED = re.compile(r":? (?:bytearray\()?b['\"]")
"""Where h11 begins to quote what it could not read."""

_HEAD_TOO_LARGE = f"The request's headers or its path are larger than {HEAD_BYTES >> 10} KiB."
_UNANSWERED = (h11.IDLE, h11.SEND_RESPONSE, h11.SEND_BODY)

Owed = Literal["request", "head", "body"]


class RequestTimeout(HeadraceError):
    code = "request_timeout"
    status = 408


class HeadTooLarge(HeadraceError):
    code = "headers_too_large"
    status = 431


class CodingNotOffered(HeadraceError):
    code = "unsupported_transfer_encoding"
    status = 501


class NotHttp(HeadraceError):
    code = "invalid_http"
    status = 400


class Connection(H11Protocol):
    """h11's connection of uvicorn, with a clock on everything that the client still has to send."""

    _owed: Owed | None = None
    _clock: asyncio.TimerHandle | None = None
    _received = 0
    _received_before = 0
    """What had come when the clock was set."""
    _refused = False
    _owed_since = 0.0

    @property
    def idle_since(self) -> float:
        """Since when, in the loop's time, a request or its head is owed; infinite where none is."""
        return self._owed_since if self._owed in ("request", "head") else math.inf

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return  # read and dropped: closing at once would take the refusal away from the client
        self._received += len(data)
        super().data_received(data)
        self._watch()

    def handle_events(self) -> None:
        """h11 itself has a limit only for a head that comes in pieces, UNFINISHED_HEAD_BYTES."""
        if self.conn.their_state is h11.IDLE:
            waiting = self.conn.trailing_data[0]
            end = _END_OF_HEAD.search(waiting)
            if end is not None and end.start() > HEAD_BYTES:
                self._refuse(HeadTooLarge(_HEAD_TOO_LARGE))
                return
        super().handle_events()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._set_clock(None)

    def _unsupported_upgrade_warning(self) -> None:
        """A client that offers HTTP/2 or a WebSocket is answered in HTTP/1.1, which is in order."""

    # --- what the client owes -----------------------------------------------------------------

    def _watch(self) -> None:
        """Set the clock anew when the client owes something else than before."""
        owed = self._owes()
        if owed != self._owed:
            self._set_clock(owed)

    def _owes(self) -> Owed | None:
        if self.transport.is_closing():
            return None
        if self.conn.their_state is h11.SEND_BODY:
            return "body"
        if self.conn.their_state is h11.IDLE:
            return "head" if self.conn.trailing_data[0] else "request"
        return None

    def _set_clock(self, owed: Owed | None) -> None:
        if self._clock is not None:
            self._clock.cancel()
        self._owed, self._clock = owed, None
        self._owed_since = self.loop.time()
        self._received_before = self._received
        if owed is not None:
            seconds = {"request": KEEP_ALIVE_S, "head": HEAD_S, "body": BODY_S}[owed]
            self._clock = self.loop.call_later(seconds, self._overdue)

    def _overdue(self) -> None:
        owed = self._owed
        answered = self.conn.our_state not in _UNANSWERED
        grown = self._received - self._received_before >= BODY_LEAST_BYTES
        if owed == "body" and not answered and (grown or self.flow.read_paused):
            self._set_clock(owed)
        elif owed == "request" or (owed == "body" and answered):
            self._set_clock(None)
            self.transport.close()
        else:
            self._refuse(
                RequestTimeout(
                    f"The rest of the request's {owed} did not come in time.",
                    hint="Send the request again, without pauses.",
                )
            )

    # --- refusals -----------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        """uvicorn calls it, with its one sentence `msg`, where it has caught h11's error."""
        error = sys.exc_info()[1]
        # What was sent may be a body that is longer than it was said to be: a prompt, and no line
        # of the log.
        kind = _QUOTED.split(str(error or msg))[0]
        log.warning("a client sent what is no valid HTTP/1.1: %s", kind)
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        if status == HeadTooLarge.status:
            self._refuse(HeadTooLarge(_HEAD_TOO_LARGE))
        elif status == CodingNotOffered.status:
            self._refuse(
                CodingNotOffered(
                    "This Transfer-Encoding is not supported.",
                    hint="Send `chunked`, or a Content-Length.",
                )
            )
        else:
            self._refuse(NotHttp("The request is not valid HTTP/1.1."))

    def _refuse(self, error: HeadraceError) -> None:
        """Answer if no answer has begun, then close as soon as the client has had time to read."""
        self._set_clock(None)
        self._unset_keepalive_if_required()
        self._refused = True
        path, sent = self._asked()
        if self.conn.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY):
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        body = error_content(path, error, sent)
        phrase = HTTPStatus(error.status).phrase
        headers = [
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ]
        for event in (
            h11.Response(status_code=error.status, headers=headers, reason=phrase),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.abort)

    def _asked(self) -> tuple[str, Headers]:
        """Path and headers of the request at fault, as far as they came."""
        if self.conn.their_state is h11.SEND_BODY or self.conn.our_state is h11.SEND_RESPONSE:
            return str(self.scope["path"]), Headers(raw=list(self.scope["headers"]))
        words = self.conn.trailing_data[0][:1024].split(b" ", 2)
        target = words[1].partition(b"?")[0].decode("latin-1") if len(words) > 1 else ""
        return split_target(target)[1], Headers()
