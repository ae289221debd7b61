"""Accepting connections within the limit of open files.

asyncio's own servers answer a failing accept() with a traceback each and try again at once; and
idle connections could use up every file that may be open, so that nobody else is heard.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path

from engine.server.connection import Connection

log = logging.getLogger("headrace.server")

RESERVE = 64
"""Files that are left for the runtime's pipes, the model's files and records, where there are so
many; else half of what there is."""
PAUSE_S = 0.25
"""Between two attempts while there is no room, and the least time a connection has to ask."""
WARNING_S = 60.0
"""Between two warnings of the same."""


def connection_bound() -> int:
    """How many connections may be open at once, of the limit of open files as it is now."""
    if sys.platform == "win32":
        return 1 << 20  # sockets are no files there
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return 1 << 20
    left = max(0, limit - len(list(Path("/dev/fd").iterdir())))
    return max(1, left - min(RESERVE, left // 2))


class Acceptor:
    """Accepts on listening sockets until its tasks are cancelled.

    Above `bound` the connection that has been idle longest is closed; where none is idle,
    accepting waits, and clients with it in the system's queue.
    """

    def __init__(
        self, connections: Collection[Connection], make: Callable[[], Connection], bound: int
    ) -> None:
        """`connections` are those that are open, in any order."""
        self._connections = connections
        self._make = make
        self._bound = bound
        self._warned_at = -WARNING_S

    async def accept_on(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while len(self._open()) > self._bound:
                await self._make_room("every connection that may be open is in use")
            try:
                client, _ = await loop.sock_accept(listening)
            except ConnectionError:
                continue  # the client has gone already
            except OSError as error:
                await self._make_room(str(error.strerror))
                continue
            try:
                # Each token is sent at once, not held until a client has acknowledged the one
                # before it, which it may put off for 40 ms.
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await loop.connect_accepted_socket(self._make, client)
            except OSError as error:
                log.debug("a connection ended at once: %s", error)
                client.close()

    def _open(self) -> list[Connection]:
        return [one for one in self._connections if not one.transport.is_closing()]

    async def _make_room(self, why: str) -> None:
        latest = asyncio.get_running_loop().time() - PAUSE_S
        idle = [one for one in self._open() if one.idle_since < latest]
        if idle:
            min(idle, key=lambda one: one.idle_since).transport.close()
            await asyncio.sleep(0)
            return
        now = time.monotonic()
        if now - self._warned_at >= WARNING_S:
            self._warned_at = now
            log.warning("new connections wait: %s; `ulimit -n` allows for more", why)
        await asyncio.sleep(PAUSE_S)
