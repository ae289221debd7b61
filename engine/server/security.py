"""Who may talk to a local engine: keys, host names and web pages.

Decisions:
* A web page must not drive a local engine. Browsers name the page in Origin; a request that has
  one is served only for pages of this PC (http or https on a loopback name) and for origins allowed
  by --allow-origin. `null` (sandboxed frames of any page) and schemes of app shells such as
  tauri://localhost are refused unless allowed in that way. Requests without Origin are not from a
  page and are served.
* A page can point its own name at 127.0.0.1 (DNS rebinding). So the Host header must be a literal
  address, `localhost`, this machine's name, or one allowed by --allow-host.
* With --api-key every path but /health wants the key, as a bearer token or as x-api-key. The
  control token opens /v1/engine too.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.server.http import Forbidden, NotAuthorised, error_response

_ALLOWED_METHODS = "GET, POST, OPTIONS"
_PREFLIGHT_SECONDS = "600"


class Security:
    """ASGI layer in front of every endpoint."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        api_key: str = "",
        control_token: str = "",
        allow_hosts: Sequence[str] = (),
        allow_origins: Sequence[str] = (),
    ) -> None:
        self._app = app
        self._key = api_key
        self._control_token = control_token
        own = socket.gethostname().lower()
        self._hosts = {"localhost", own, f"{own}.local", *(host.lower() for host in allow_hosts)}
        self._origins = {origin.rstrip("/") for origin in allow_origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        path = scope["path"]
        origin = headers.get("origin")
        refusal = self._refusal(headers, path, origin)
        if scope["method"] == "OPTIONS" and not isinstance(refusal, Forbidden):
            await _preflight(headers, origin)(scope, receive, send)
            return
        if refusal is not None:
            send = _with_origin(send, None if isinstance(refusal, Forbidden) else origin)
            await error_response(path, refusal)(scope, receive, send)
            return
        await self._app(scope, receive, _with_origin(send, origin))

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
                hint="Start the server with --allow-origin to let them.",
            )
        if self._key and path != "/health" and not self._key_fits(headers, path):
            return NotAuthorised(
                "The API key is missing or wrong.",
                hint="Send it as `Authorization: Bearer KEY` or `x-api-key: KEY`.",
            )
        return None

    def _host_allowed(self, host: str) -> bool:
        name = _name_of(host)
        return name in self._hosts or _address(name) is not None

    def _origin_allowed(self, origin: str) -> bool:
        if origin.rstrip("/") in self._origins:
            return True
        try:
            parts = urlsplit(origin)
            name = (parts.hostname or "").lower()
        except ValueError:
            return False
        if parts.scheme not in ("http", "https"):
            return False
        address = _address(name)
        return name == "localhost" or (address is not None and address.is_loopback)

    def _key_fits(self, headers: Headers, path: str) -> bool:
        bearer = bearer_token(headers)
        fits = same_secret(bearer, self._key)
        fits |= same_secret(headers.get("x-api-key", ""), self._key)
        if path.startswith("/v1/engine/") and self._control_token:
            fits |= same_secret(bearer, self._control_token)
        return fits


def bearer_token(headers: Headers) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def same_secret(given: str, expected: str) -> bool:
    """Compare without telling by the time it takes how much of it was right.

    `given` comes from a header, whose bytes arrive as Latin-1; clients send a key as UTF-8.
    """
    return hmac.compare_digest(given.encode("latin-1"), expected.encode())


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


def _preflight(headers: Headers, origin: str | None) -> Response:
    if origin is None:
        return Response(status_code=204, headers={"Allow": _ALLOWED_METHODS})
    answer = {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Allow-Methods": _ALLOWED_METHODS,
        "Access-Control-Allow-Headers": headers.get("access-control-request-headers", "*"),
        "Access-Control-Max-Age": _PREFLIGHT_SECONDS,
        "Vary": "Origin, Access-Control-Request-Headers",
    }
    if headers.get("access-control-request-private-network") == "true":
        answer["Access-Control-Allow-Private-Network"] = "true"
    return Response(status_code=204, headers=answer)


def _with_origin(send: Send, origin: str | None) -> Send:
    """Answers to an allowed page carry its origin, so that the page may read them."""
    if origin is None:
        return send

    async def send_with_origin(message: Message) -> None:
        if message["type"] == "http.response.start":
            extra = [
                (b"access-control-allow-origin", origin.encode("latin-1")),
                (b"vary", b"Origin"),
            ]
            message = {**message, "headers": [*message.get("headers", []), *extra]}
        await send(message)

    return send_with_origin
