"""The server as an ASGI application."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Awaitable, Callable, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.errors import HeadraceError
from engine.server import (
    anthropic,
    completions,
    control,
    metrics,
    models,
    openai,
    openapi,
    responses,
    tokens,
)
from engine.server.http import HUNG_UP, MethodNotAllowed, NotFound, error_response
from engine.server.keys import KeyRing
from engine.server.ownership import Ownership
from engine.server.queries import KnownQuery
from engine.server.recording import Recorder
from engine.server.security import Security
from engine.server.service import Service
from engine.server.targets import OriginForm

_NO_ID = re.compile(r"/v1/responses/(?!resp_)[^/]*")
"""What is no response, though it stands where one would: `compact`, say."""
_WITHOUT_VERSION = ("/chat/completions", "/completions", "/responses", "/messages", "/models")
access_log = logging.getLogger("headrace.access")

_POLLED = ("/health", "/metrics", "/v1/engine/")
"""Asked for again and again by the app and by monitoring; logged only where something changes."""


def create_app(
    service: Service,
    ownership: Ownership,
    end: Callable[[str], None],
    *,
    keys: KeyRing,
    allow_hosts: Sequence[str] = (),
    cors_origins: Sequence[str] = (),
    access_log: bool = True,
    recorder: Recorder | None = None,
) -> ASGIApp:
    """`end(reason)` shuts the server down in order."""
    handlers: dict[type[Exception] | int, Callable[[Request, Exception], Awaitable[Response]]] = {
        HeadraceError: _typed,
        HTTPException: _http,
        ClientDisconnect: _hung_up,
        Exception: _unexpected,
    }
    serving = [
        *openai.routes(service),
        *completions.routes(service),
        *responses.routes(service),
        *tokens.routes(service),
        *anthropic.routes(service),
    ]
    for route in serving:
        route.app = Served(service, recorder.wrapped(route.app) if recorder else route.app)
    offered = [
        *serving,
        *models.routes(service),
        *metrics.routes(service),
        *control.routes(service, ownership, end),
    ]
    offered.append(openapi.route(offered))
    for route in offered:
        route.app = KnownQuery(route.app, openapi.queries(route))
    app = Starlette(
        routes=offered,
        exception_handlers=handlers,
    )
    app.router.redirect_slashes = False
    secured = Security(
        app,
        keys=keys,
        control_token=ownership.token,
        allow_hosts=allow_hosts,
        cors_origins=cors_origins,
    )
    return OriginForm(AccessLog(secured) if access_log else secured)


async def _typed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HeadraceError)  # registered for it
    return error_response(request.scope, error)


async def _http(request: Request, error: Exception) -> Response:
    """Starlette's own refusals (unknown path, wrong method), in the protocol's shape."""
    assert isinstance(error, HTTPException)  # registered for it
    path = request.url.path
    if error.status_code == 405 and not _NO_ID.fullmatch(path):
        allowed = (error.headers or {}).get("Allow", "")
        answer = error_response(
            request.scope, MethodNotAllowed(f"{request.method} is not offered at {path}.")
        )
        if allowed:
            answer.headers["Allow"] = allowed
        return answer
    hint = ""
    if path in _WITHOUT_VERSION:
        hint = "The base URL must end in /v1."
    elif path.startswith("/v1/v1/"):
        hint = "The base URL ends in /v1 and the client adds another: leave one out."
    elif "//" in path or path.endswith("/"):
        hint = "The path has a slash too many: the base URL should not end in one."
    return error_response(
        request.scope, NotFound(f"There is nothing at {request.method} {path}.", hint=hint)
    )


async def _hung_up(_request: Request, _error: Exception) -> Response:
    return Response(status_code=HUNG_UP)


async def _unexpected(request: Request, _error: Exception) -> Response:
    """A mistake of the server's own; Starlette raises it again, so that it is logged."""
    return error_response(
        request.scope,
        HeadraceError("The server made a mistake with this request; its log has the details."),
    )


class Served:
    """Around an endpoint that uses the model: whoever waits for it, from the request's head to the
    answer's last byte, keeps the server alive.
    """

    def __init__(self, service: Service, app: ASGIApp) -> None:
        self._service = service
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._service.served():
            await self._app(scope, receive, send)


class AccessLog:
    """One line a request, without the noise of polling."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (
            scope["method"] == "GET" and scope["path"].startswith(_POLLED)
        ):
            await self._app(scope, receive, send)
            return
        status = 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        began = time.monotonic()
        try:
            await self._app(scope, receive, watched)
        finally:
            access_log.info(
                "%s %s %d %.3f s",
                printable(scope["method"]),
                printable(scope["path"]),
                status,
                time.monotonic() - began,
            )


def printable(sent: str) -> str:
    """What a client sent, cut at 200, with escapes for what ends a line or steers a terminal."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in sent[:200])
    return shown if len(sent) <= 200 else shown + "..."
