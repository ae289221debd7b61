"""Connections as they are accepted."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from engine.server import listening
from engine.server.accepting import Acceptor


def test_what_is_written_is_sent_at_once() -> None:
    """Held back until the client has acknowledged what came before, tokens would be 40 ms late."""

    async def option() -> int:
        made: asyncio.Queue[asyncio.BaseTransport] = asyncio.Queue()

        class Accepted(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                made.put_nowait(transport)

        (sock, *others) = listening.listen("127.0.0.1", 0)
        make: Any = Accepted
        accepting = asyncio.create_task(Acceptor([], make, 9).accept_on(sock))
        _, writer = await asyncio.open_connection(*sock.getsockname())
        transport = await made.get()
        accepted = transport.get_extra_info("socket")
        value = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        accepting.cancel()
        writer.close()
        transport.close()
        await asyncio.sleep(0)
        for each in (sock, *others):
            each.close()
        return int(value)

    assert asyncio.run(option()) != 0
