"""What every endpoint answers with: JSON, server-sent events, errors in both shapes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from engine.chat.text_model import PromptTooLong
from engine.errors import HeadraceError, told

T = TypeVar("T")

PING_S = 10.0
"""Silence after which a stream says that it lives: agents give up on quiet ones."""
RETRY_AFTER_S = 2
MAX_MESSAGE_CHARS, MAX_PARAM_CHARS = 1000, 200
"""Of what a client sent, as much is said back."""


class NotFound(HeadraceError):
    code = "not_found"
    status = 404


class MethodNotAllowed(HeadraceError):
    code = "method_not_allowed"
    status = 405


class NotAuthorised(HeadraceError):
    code = "invalid_api_key"
    status = 401


class Forbidden(HeadraceError):
    code = "forbidden"
    status = 403


def json_response(
    content: Any, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    return Response(
        msgspec.json.encode(content),
        status_code=status,
        media_type="application/json",
        headers=headers,
    )


_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def openai_error(error: HeadraceError) -> dict[str, Any]:
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {
        "error": {
            "message": sentence(error),
            "type": _OPENAI_TYPES.get(error.status, kind),
            "param": error.param[:MAX_PARAM_CHARS] or None,
            "code": error.code,
        }
    }


def anthropic_error(error: HeadraceError) -> dict[str, Any]:
    message = sentence(error)
    if isinstance(error, PromptTooLong):
        # Agents compact their history when they read these words.
        message = f"prompt is too long: {error.tokens} tokens > {error.limit} maximum"
    kind = "invalid_request_error" if error.status < 500 else "api_error"
    return {
        "type": "error",
        "error": {
            "type": _ANTHROPIC_TYPES.get(error.status, kind),
            "message": message,
            "details": {"error_code": error.code},
        },
    }


def sentence(error: HeadraceError) -> str:
    """Message and hint. What a client sent may be in it, but not by the megabyte."""
    message = error.message
    if len(message) > MAX_MESSAGE_CHARS:
        message = f"{message[: MAX_MESSAGE_CHARS - 3]}..."
    return told(message, error.hint)


_ANTHROPIC_PATHS = ("/v1/messages", "/v1/messages/")
_OPENAI_PATHS = (
    *("/v1/chat/", "/v1/completions", "/v1/responses", "/v1/engine/", "/v1/tokenize"),
    *("/v1/detokenize", "/tokenize", "/detokenize", "/health", "/metrics", "/openapi.json"),
)


def shapes(path: str) -> tuple[bool, ...]:
    """Whether a refusal at this path can be in Anthropic's shape (True) or OpenAI's (False); both
    are possible where the path belongs to neither protocol."""
    if path == _ANTHROPIC_PATHS[0] or path.startswith(_ANTHROPIC_PATHS[1]):
        return (True,)
    return (False,) if path == "/" or path.startswith(_OPENAI_PATHS) else (False, True)


def error_content(path: str, error: HeadraceError, headers: Headers | None = None) -> bytes:
    """The error as JSON, in the shape of the protocol that the path belongs to; elsewhere in the
    one whose client has sent these headers."""
    possible = shapes(path)
    anthropic = possible[0] if len(possible) == 1 else _from_anthropic(headers or Headers())
    return msgspec.json.encode(anthropic_error(error) if anthropic else openai_error(error))


def _from_anthropic(headers: Headers) -> bool:
    """Whether they are those of Anthropic's clients."""
    bare_key = "x-api-key" in headers and "authorization" not in headers
    return "anthropic-version" in headers or bare_key


def error_response(scope: Scope, error: HeadraceError) -> Response:
    headers = {}
    if error.status == 503:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    content = error_content(scope["path"], error, Headers(scope=scope))
    return Response(content, error.status, headers, "application/json")


class Closable(Protocol):
    async def aclose(self) -> None: ...


class EventStream(Response):
    """Server-sent events that end when the client hangs up.

    In any case `source`, of which the frames are made, is closed: frames that were never begun
    could not do it.
    """

    def __init__(
        self,
        frames: AsyncIterator[bytes],
        ping: bytes = b": ping\n\n",
        source: Closable | None = None,
    ) -> None:
        super().__init__(
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )
        del self.headers["content-length"]
        self._frames = frames
        self._ping = ping
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        hung_up: asyncio.Future[Any] = asyncio.create_task(wait_hang_up(receive))
        pending: asyncio.Future[Any] | None = None
        try:
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            with contextlib.suppress(StopAsyncIteration):
                while scope["method"] != "HEAD":
                    pending = pending or asyncio.ensure_future(anext(self._frames))
                    await asyncio.wait(
                        {pending, hung_up}, timeout=PING_S, return_when=asyncio.FIRST_COMPLETED
                    )
                    if hung_up.done():
                        return
                    frame = self._ping
                    if pending.done():
                        frame, pending = pending.result(), None
                    await send(_body(frame, more=True))
            await send(_body(b"", more=False))
        finally:
            hung_up.cancel()
            await _close(pending, self._frames)
            if self._source is not None:
                await self._source.aclose()


def _body(frame: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": frame, "more_body": more}


async def _close(pending: asyncio.Future[Any] | None, frames: AsyncIterator[bytes]) -> None:
    if pending is not None and not pending.done():
        pending.cancel()
        with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
            await pending
    close = getattr(frames, "aclose", None)
    if close is not None:
        await close()


async def wait_hang_up(receive: Receive) -> None:
    """Returns when the client has closed the connection. The body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_hung_up(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`, or None after cancelling it because the client hung up."""
    working = asyncio.ensure_future(work)
    hung_up = asyncio.create_task(wait_hang_up(request.receive))
    try:
        await asyncio.wait({working, hung_up}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        return None
    finally:
        hung_up.cancel()
        if not working.done():
            working.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await working


HUNG_UP = 499
"""Status of an answer that nobody reads; only the access log sees it."""
