"""What the server takes over of uvicorn is no public interface of it: each name must be there."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http import h11_impl
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from engine.server.connection import Connection
from engine.server.main import _Uvicorn


@pytest.mark.parametrize(
    ("base", "ours", "names"),
    [
        (
            H11Protocol,
            Connection,
            "connection_made connection_lost data_received on_response_complete send_400_response",
        ),
        (H11Protocol, Connection, "handle_events"),
        (H11Protocol, Connection, "_unsupported_upgrade_warning"),
        (uvicorn.Server, _Uvicorn, "startup shutdown capture_signals"),
    ],
)
def test_what_is_overridden_is_there_with_the_same_parameters(
    base: type, ours: type, names: str
) -> None:
    for name in names.split():
        theirs, mine = vars(base)[name], vars(ours)[name]
        assert [*inspect.signature(mine).parameters] == [*inspect.signature(theirs).parameters]


def test_uvicorn_itself_calls_what_is_overridden() -> None:
    source = inspect.getsource(h11_impl)
    for name in (
        "handle_events",
        "send_400_response",
        "_unsupported_upgrade_warning",
        "on_response_complete",
    ):
        assert f"self.{name}" in source
    assert "self.capture_signals()" in inspect.getsource(uvicorn.Server)


def test_what_is_used_of_a_connection_is_there() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        """Never called."""

    async def made() -> Connection:
        config = uvicorn.Config(app, http=Connection)
        config.load()
        return Connection(config, uvicorn.Server(config).server_state, {})

    connection = asyncio.run(made())
    for name in [
        "conn",
        "transport",
        "cycle",
        "flow",
        "scope",
        "loop",
        "_unset_keepalive_if_required",
    ]:
        assert hasattr(connection, name), name
    server = uvicorn.Server(uvicorn.Config(app))
    assert isinstance(server.server_state.connections, set)
    made_of = inspect.signature(RequestResponseCycle).parameters
    assert "message_event" in made_of
    assert "self.disconnected = " in inspect.getsource(RequestResponseCycle)
