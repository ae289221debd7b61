"""Request targets in absolute form, which a server has to take (RFC 9112, 3.2.2)."""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Receive, Scope, Send

_ABSOLUTE = re.compile(r"https?://([^/]*)(/.*)?", re.IGNORECASE | re.DOTALL)


def split_target(target: str) -> tuple[str, str]:
    """Authority and path of a target without its query; the authority of a bare path is ""."""
    found = _ABSOLUTE.fullmatch(target)
    return (found[1], found[2] or "/") if found else ("", target)


class OriginForm:
    """Around everything: a target in absolute form is split, and its authority is the host,
    whatever the header of that name says."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        authority, path = split_target(scope.get("path", ""))
        if scope["type"] == "http" and path != scope["path"]:
            raw = split_target(scope["raw_path"].decode("latin-1"))[1]
            headers = [each for each in scope["headers"] if each[0] != b"host"]
            headers.append((b"host", authority.encode("latin-1", "replace")))
            scope = {**scope, "path": path, "raw_path": raw.encode("latin-1"), "headers": headers}
        await self._app(scope, receive, send)
