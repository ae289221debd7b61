"""What every endpoint shares: bodies in, JSON and server-sent events out, errors in both shapes."""

from __future__ import annotations

import asyncio
import contextlib
import re
import zlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from engine.chat.sampling import RANGES
from engine.chat.text_model import PromptTooLong
from engine.errors import HeadraceError, InvalidRequest

T = TypeVar("T")

MAX_BODY_BYTES = 32 << 20
LARGEST = (1 << 31) - 1
"""Of counts in a request: beyond every context, and within what the runtime's records hold."""
PING_S = 10.0
"""Silence after which a stream says that it lives: agents give up on quiet ones."""
RETRY_AFTER_S = 2


class BodyTooLarge(InvalidRequest):
    code = "request_too_large"
    status = 413


class UnsupportedEncoding(InvalidRequest):
    code = "unsupported_encoding"
    status = 415


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


# --- requests ---------------------------------------------------------------------------------


async def read_body(request: Request) -> bytes:
    """The whole body, decompressed. Raises BodyTooLarge, UnsupportedEncoding, InvalidRequest."""
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > MAX_BODY_BYTES:
        raise _too_large()
    pieces, size = [], 0
    async for piece in request.stream():
        size += len(piece)
        if size > MAX_BODY_BYTES:
            raise _too_large()
        pieces.append(piece)
    body = b"".join(pieces)
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding != "gzip":
        raise UnsupportedEncoding(
            f"Content-Encoding {encoding!r} is not supported.", hint="Send gzip, or no encoding."
        )
    unzip = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        body = unzip.decompress(body, MAX_BODY_BYTES + 1)
    except zlib.error as error:
        raise InvalidRequest(f"The body is not valid gzip: {error}.") from error
    if len(body) > MAX_BODY_BYTES:
        raise _too_large()
    if not unzip.eof:
        raise InvalidRequest("The gzip body ends too early.")
    if unzip.unused_data:
        raise InvalidRequest("The gzip body goes on after its end; send one member.")
    return body


def _too_large() -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than {MAX_BODY_BYTES >> 20} MiB.")


def parse_json(body: bytes) -> dict[str, Any]:
    """A JSON object. Raises InvalidRequest that says what is wrong with the text."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from error
    if not isinstance(value, dict):
        raise InvalidRequest("The body is not a JSON object.")
    return value


_AT = re.compile(r" - at `(?:key in )?\$\.?(?P<path>[^`]*)`$")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>[^`]*)`")


def convert(value: dict[str, Any], type_: type[T], *, null_is_absent: tuple[str, ...] = ()) -> T:
    """The value as a record. Raises InvalidRequest whose `param` is the field at fault.

    Nulls at the top level, and anywhere under the fields `null_is_absent`, count as absent.
    """
    present = {key: item for key, item in value.items() if item is not None}
    for key in null_is_absent:
        if key in present:
            present[key] = without_nulls(present[key])
    try:
        return msgspec.convert(present, type_)
    except (msgspec.ValidationError, RecursionError) as error:
        raise _invalid(str(error)) from error


def _invalid(text: str) -> InvalidRequest:
    at = _AT.search(text)
    path = at.group("path") if at else ""
    problem = text[: at.start()] if at else text
    unknown = _UNKNOWN.match(problem)
    if unknown:
        field = f"{path}.{unknown.group('name')}" if path else unknown.group("name")
        return InvalidRequest(
            f"The parameter {field!r} is not supported.",
            hint="Leave it out. Nothing that would change the answer is ignored in silence.",
            param=field,
        )
    missing = re.match(r"Object missing required field `([^`]*)`", problem)
    if missing:
        field = f"{path}.{missing.group(1)}" if path else missing.group(1)
        return InvalidRequest(f"The parameter {field!r} is missing.", param=field)
    where = f"{path}: " if path else ""
    return InvalidRequest(f"{where}{problem}.", param=path)


_VERBATIM = frozenset({"arguments", "input"})


def without_nulls(value: Any) -> Any:
    """Nested objects without their null members, except inside a tool call's own arguments."""
    if isinstance(value, dict):
        return {
            key: item if key in _VERBATIM else without_nulls(item)
            for key, item in value.items()
            if item is not None
        }
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def in_range(value: float | None, name: str, low: float, high: float = LARGEST) -> None:
    """Raises InvalidRequest naming the field, its value and its bounds. None is absent."""
    if value is not None and not low <= value <= high:
        bounds = f"{low:g} or more" if high == LARGEST else f"from {low:g} to {high:g}"
        raise InvalidRequest(f"{name} is {value}; it must be {bounds}.", param=name)


def sampling_in_range(record: Any) -> None:
    """The same for every sampling parameter that the record has."""
    for name, (low, high) in RANGES.items():
        in_range(getattr(record, name, None), name, low, high)


# --- answers ----------------------------------------------------------------------------------


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
            "param": error.param or None,
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
        },
    }


def sentence(error: HeadraceError) -> str:
    return f"{error.message} {error.hint}" if error.hint else error.message


def is_anthropic(path: str) -> bool:
    return path == "/v1/messages" or path.startswith("/v1/messages/")


def error_response(path: str, error: HeadraceError) -> Response:
    """The error in the shape of the protocol that the path belongs to."""
    content = anthropic_error(error) if is_anthropic(path) else openai_error(error)
    headers = {}
    if error.status == 503:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return json_response(content, error.status, headers)


class EventStream(Response):
    """Server-sent events that end when the client hangs up, which closes the source."""

    def __init__(self, frames: AsyncIterator[bytes], ping: bytes = b": ping\n\n") -> None:
        super().__init__(
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )
        del self.headers["content-length"]
        self._frames = frames
        self._ping = ping

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        hung_up: asyncio.Future[Any] = asyncio.create_task(wait_hang_up(receive))
        pending: asyncio.Future[Any] | None = None
        try:
            while True:
                pending = pending or asyncio.ensure_future(anext(self._frames))
                await asyncio.wait(
                    {pending, hung_up}, timeout=PING_S, return_when=asyncio.FIRST_COMPLETED
                )
                if hung_up.done():
                    return
                if pending.done():
                    frame = pending.result()
                    pending = None
                else:
                    frame = self._ping
                await send(_body(frame, more=True))
        except StopAsyncIteration:
            await send(_body(b"", more=False))
        finally:
            hung_up.cancel()
            await _close(pending, self._frames)


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
