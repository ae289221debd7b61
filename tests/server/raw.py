"""A client that writes bytes of its own making, as no HTTP library would."""

from __future__ import annotations

import json
import socket
from typing import Any, NamedTuple

from tests.server.running import Server


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes
    closed: bool
    """Whether the server ended the connection after it."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def connect(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=30)


def head(method: str, path: str, *lines: str, version: str = "1.1") -> bytes:
    return "\r\n".join(
        [f"{method} {path} HTTP/{version}", "Host: 127.0.0.1", *lines, "", ""]
    ).encode()


def post(path: str, body: bytes, *lines: str) -> bytes:
    return head("POST", path, f"Content-Length: {len(body)}", *lines) + body


def sent(server: Server, *pieces: bytes) -> Answer:
    """The first answer to these bytes, and whether the connection ends with it."""
    with connect(server) as connection:
        for piece in pieces:
            connection.sendall(piece)
        return read(connection)


def read(connection: socket.socket) -> Answer:
    """One answer with a Content-Length."""
    with connection.makefile("rb") as source:
        status = int(source.readline().split()[1])
        headers = {}
        while line := source.readline().strip():
            name, _, value = line.decode("latin-1").partition(": ")
            headers[name.lower()] = value
        body = source.read(int(headers.get("content-length", 0)))
        closed = headers.get("connection") == "close" and not source.read(1)
    return Answer(status, headers, body, closed)
