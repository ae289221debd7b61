"""Who may talk to a local engine: keys, host names and web pages.

Decisions:
* A web page must not drive a local engine. Browsers name the page in Origin; a request that has
  one is served only for the origins of --cors-origin, compared as they are written, and only they
  get CORS headers. Pages of this PC are no exception: any program here can serve one, and what it
  shows may come from anywhere. Requests without Origin are not from a page and are served.
* A page can point its own name at 127.0.0.1 (DNS rebinding). So the Host header must be a literal
  address, `localhost`, this machine's name, or one allowed by --allow-host.
* Where there are keys (keys.py) every path but /health wants one, as a bearer token or as
  x-api-key. The control token opens /v1/engine too, and nothing else.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.server.http import Forbidden, NotAuthorised, error_response
from engine.server.keys import KeyRing, same_secret

ANY_ORIGIN = "*"
_ALLOWED_METHODS = "GET, POST, DELETE, OPTIONS"
_PREFLIGHT_SECONDS = "600"


class Security:
    """ASGI layer in front of every endpoint."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: KeyRing,
        control_token: str = "",
        allow_hosts: Sequence[str] = (),
        cors_origins: Sequence[str] = (),
    ) -> None:
        self._app = app
        self._keys = keys
        self._control_token = control_token
        own = socket.gethostname().lower()
        self._hosts = {"localhost", own, f"{own}.local", *(host.lower() for host in allow_hosts)}
        self._origins = frozenset(cors_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        path = scope["path"]
        origin = headers.get("origin")
        refusal = self._refusal(headers, path, origin)
        readable_by = None if isinstance(refusal, Forbidden) else self._shared_with(origin)
        if scope["method"] == "OPTIONS" and not isinstance(refusal, Forbidden):
            await _preflight(headers, readable_by)(scope, receive, send)
            return
        send = _readable(send, readable_by)
        if refusal is not None:
            await error_response(scope, refusal)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(
        self, headers: Headers, path: str, origin: str | None
    ) -> Forbidden | NotAuthorised | None:
        host = headers.get("host")
        if host is not None and not self._host_allowed(host):
            return Forbidden(
                f"The host name {host!r} is not one of this server's.",
                hint="Use 127.0.0.1, or start the server with --allow-host.",
            )
        if origin is not None and not self._origin_allowed(origin):
            return Forbidden(
                f"Web pages of {origin!r} may not use this server.",
                hint="Start the server with --cors-origin to let them.",
            )
        self._keys.refresh()
        if self._keys.required and path != "/health" and not self._key_fits(headers, path):
            return NotAuthorised(
                "The API key is missing or wrong.",
                hint="Send it as `Authorization: Bearer KEY` or `x-api-key: KEY`; "
                "`headrace keys create NAME` makes one.",
            )
        return None

    def _host_allowed(self, host: str) -> bool:
        name = _name_of(host)
        return name in self._hosts or _address(name) is not None

    def _origin_allowed(self, origin: str) -> bool:
        return origin in self._origins or ANY_ORIGIN in self._origins

    def _shared_with(self, origin: str | None) -> str | None:
        """Which pages may read the answer; None: the request is not from a page."""
        if origin is None:
            return None
        return ANY_ORIGIN if ANY_ORIGIN in self._origins else origin

    def _key_fits(self, headers: Headers, path: str) -> bool:
        bearer = bearer_token(headers)
        fits = any([self._keys.fits(bearer), self._keys.fits(headers.get("x-api-key", ""))])
        if path.startswith("/v1/engine/") and self._control_token:
            fits |= same_secret(bearer, self._control_token)
        return fits


def bearer_token(headers: Headers) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _name_of(host: str) -> str:
    """The name in `name:port` or `[address]:port`, in lower case."""
    name = host.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0].rstrip(".")


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _preflight(headers: Headers, readable_by: str | None) -> Response:
    if readable_by is None:
        return Response(status_code=204, headers={"Allow": _ALLOWED_METHODS})
    answer = {
        "Access-Control-Allow-Origin": readable_by,
        "Access-Control-Allow-Methods": _ALLOWED_METHODS,
        "Access-Control-Allow-Headers": headers.get("access-control-request-headers", "*"),
        "Access-Control-Max-Age": _PREFLIGHT_SECONDS,
        "Vary": "Origin, Access-Control-Request-Headers",
    }
    if headers.get("access-control-request-private-network") == "true":
        answer["Access-Control-Allow-Private-Network"] = "true"
    return Response(status_code=204, headers=answer)


def _readable(send: Send, readable_by: str | None) -> Send:
    """Answers to an allowed page say so, without which its browser would not show them to it."""
    if readable_by is None:
        return send

    async def send_with_origin(message: Message) -> None:
        if message["type"] == "http.response.start":
            extra = [
                (b"access-control-allow-origin", readable_by.encode("latin-1")),
                (b"vary", b"Origin"),
            ]
            message = {**message, "headers": [*message.get("headers", []), *extra]}
        await send(message)

    return send_with_origin
